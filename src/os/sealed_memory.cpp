// SPDX-License-Identifier: Apache-2.0
#include "os/sealed_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_limit.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

failure not_shared(const std::string& step) {
  const int code = errno;
  return failure{code, format("memory shared between two processes: %s failed: %s%s", step.c_str(), errno_text(code).c_str(),
                              code == EFBIG ? "; raise the limit on the length of files (ulimit -f)" : "")};
}

}  // namespace

result<sealed_memory> sealed_memory::make(const char* label, std::size_t bytes) {
  sealed_memory out;
  out.fd = unique_fd(real_device_io(), memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!out.fd) return not_shared("memfd_create");
  struct stat info {};
  const file_limit_as_error during_growth;
  if (ftruncate(out.fd.get(), static_cast<off_t>(bytes)) != 0 || fstat(out.fd.get(), &info) != 0)
    return not_shared("sizing it");
  if (fcntl(out.fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return not_shared("sealing its size");
  out.inode = info.st_ino;
  out.bytes = bytes;
  return out;
}

result<sealed_memory> sealed_memory::open(std::int32_t pid, std::int32_t fd, std::uint64_t inode,
                                          std::uint64_t least_bytes) {
  const auto path = format("/proc/%d/fd/%d", pid, fd);
  sealed_memory out;
  out.inode = inode;
  out.fd = unique_fd(real_device_io(), ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!out.fd) return not_shared("opening " + path);
  struct stat info {};
  if (fstat(out.fd.get(), &info) != 0) return not_shared("fstat");
  out.bytes = static_cast<std::uint64_t>(info.st_size);
  // The number may refer to another file by now, and a short file would fault.
  if (info.st_ino != inode || out.bytes < least_bytes)
    return failure{ESTALE, "memory shared between two processes: the file is not the one that was named"};
  const int seals = fcntl(out.fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return failure{EPROTO, "memory shared between two processes: its owner could still shrink it (no seals on its size)"};
  return out;
}

bool cannot_shrink(int fd) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace pl
