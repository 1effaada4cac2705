// SPDX-License-Identifier: Apache-2.0
#include "base/load_library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace pl {
namespace {

// dlopen sets no errno, and its text is in the user's language, so this tries to open another file.
int descriptors_left() noexcept {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

}  // namespace

result<void*> load_library(const char* name, int mode) {
  if (void* const loaded = dlopen(name, mode)) return loaded;
  const char* const cause = dlerror();
  std::string text = cause != nullptr ? cause : std::string(name) + " cannot be opened";
  const int code = descriptors_left();
  if (code == EMFILE) return failure{code, text + ": close files or raise the limit of open files (ulimit -n)"};
  if (code == ENFILE) return failure{code, text + ": the system has no more open files (fs.file-max)"};
  return failure{ENOENT, std::move(text)};
}

}  // namespace pl
