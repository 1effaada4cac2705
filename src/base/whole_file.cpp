// SPDX-License-Identifier: Apache-2.0
#include "base/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/file_limit.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

failure failed(int code) { return {code, errno_text(code)}; }

// An unnamed file in the folder of `path`, so that nothing is left there if the process ends before link_file().
// Negative if the file system does not support it.
int open_unnamed(const std::string& path, unsigned mode) {
  const auto end = path.rfind('/');
  const std::string folder = end == std::string::npos ? "." : path.substr(0, end + 1);
  return open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
}

bool link_file(int fd, const std::string& path) {
  const std::string self = format("/proc/self/fd/%d", fd);
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// Closes the descriptor. An unnamed file gets the name `fresh`, if given.
status write_all(int fd, std::string_view text, const char* fresh = nullptr) {
  const file_limit_as_error during_write;
  int code = 0;
  while (!text.empty() && code == 0) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote >= 0) text.remove_prefix(static_cast<std::size_t>(wrote));
    else if (errno != EINTR) code = errno;
  }
  if (code == 0 && fresh != nullptr && !link_file(fd, fresh)) code = errno;
  // Network file systems may report a lack of room only here.
  if (close(fd) != 0 && code == 0 && errno != EINTR) code = errno;
  return code == 0 ? status{} : status(failed(code));
}

}  // namespace

result<std::string> read_whole_file(const std::string& path, std::size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return failed(errno);
  auto text = read_to_end(fd, max_bytes);
  close(fd);
  return text;
}

result<std::string> read_to_end(int fd, std::size_t max_bytes) {
  fcntl(fd, F_SETFL, O_RDONLY);  // a pipe's writers are waited for, if there are any
  constexpr std::size_t kPartBytes = 65536;
  std::string out;
  const auto part = std::make_unique_for_overwrite<char[]>(kPartBytes);  // not on the stack: a caller's thread may have less
  ssize_t got = 0;
  while ((got = read(fd, part.get(), kPartBytes)) > 0 || (got < 0 && errno == EINTR))
    if (got > 0 && static_cast<std::size_t>(got) <= max_bytes - out.size())
      out.append(part.get(), static_cast<std::size_t>(got));
    else if (got > 0) break;
  const int code = got < 0 ? errno : got > 0 ? EFBIG : 0;
  if (code != 0) return failed(code);
  return out;
}

std::string file_text_or_empty(const std::string& path) {
  auto text = read_whole_file(path);
  return text ? std::move(*text) : std::string();
}

bool is_replaceable(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode);
}

status write_whole_file(const std::string& path, std::string_view text, unsigned mode) {
  if (!is_replaceable(path)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, mode);
    return fd < 0 ? status(failed(errno)) : write_all(fd, text);
  }
  const std::string fresh = format("%s.%d.tmp", path.c_str(), static_cast<int>(getpid()));
  // Creates a new file, so that somebody's link of that name in a shared folder is not followed.
  unlink(fresh.c_str());
  status written = failed(ENOTSUP);
  const int unnamed = open_unnamed(path, mode);
  if (unnamed >= 0) written = write_all(unnamed, text, fresh.c_str());
  // Links to descriptors need /proc.
  if (!written && (unnamed < 0 || written.code() == ENOENT || written.code() == EPERM)) {
    const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) return failed(errno);
    written = write_all(fd, text);
  }
  if (written && std::rename(fresh.c_str(), path.c_str()) != 0) written = failed(errno);
  if (!written) unlink(fresh.c_str());
  return written;
}

}  // namespace pl
