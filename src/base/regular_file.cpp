// SPDX-License-Identifier: Apache-2.0
#include "base/regular_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.hpp"

namespace pl {
namespace {

const char* name_of_kind(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "of an unknown kind";
}

status need_regular(mode_t mode) {
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return failure{EISDIR, "it is a folder, and a regular file is expected: move it away"};
  return failure{ENOTSUP, format("it is %s, and a regular file is expected: move it away", name_of_kind(mode))};
}

failure open_failure() { return {errno, errno_text(errno)}; }

}  // namespace

status need_regular_file(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 ? need_regular(about.st_mode) : status();
}

// Looks first, because opening a device may change it, and again afterwards, because the name may be another file's by then.
result<int> open_regular_file(const std::string& path, int flags, unsigned mode) {
  if (status regular = need_regular_file(path); !regular) return regular.error();
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
  if (fd < 0) return open_failure();
  struct stat about {};
  status regular = fstat(fd, &about) == 0 ? need_regular(about.st_mode) : status(open_failure());
  // Requests of io_uring would end with EAGAIN instead of waiting for the disk.
  if (regular && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0) regular = open_failure();
  if (regular) return fd;
  close(fd);
  return regular.error();
}

status need_no_named_pipe(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0 || !S_ISFIFO(about.st_mode)) return {};
  struct statfs system {};
  if (statfs(path.c_str(), &system) == 0 && system.f_type == PIPEFS_MAGIC) return {};
  return failure{ENOTSUP, "it is a FIFO, which would be waited for: name a regular file"};
}

}  // namespace pl
