// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "text.hpp"

namespace pl::stream {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kMostBytes = 1u << 30;

failure not_shared(const std::string& step) {
  const int code = errno;
  return failure{code, format("memory shared with a peer: %s failed: %s", step.c_str(), errno_text(code).c_str())};
}

}  // namespace

result<shared_memory> shared_memory::make(const char* label, std::size_t bytes) {
  shared_memory out;
  out.fd_ = unique_fd(real_device_io(), memfd_create(label, MFD_CLOEXEC));
  if (!out.fd_) return not_shared("memfd_create");
  const auto whole = (bytes + kPage - 1) / kPage * kPage;
  struct stat info {};
  if (ftruncate(out.fd_.get(), static_cast<off_t>(whole)) != 0 || fstat(out.fd_.get(), &info) != 0)
    return not_shared("sizing it");
  out.name_ = {getpid(), out.fd_.get(), info.st_ino, whole};
  if (auto done = out.map(); !done) return done.error();
  return out;
}

result<shared_memory> shared_memory::open(const name& of) {
  if (of.bytes == 0 || of.bytes > kMostBytes || of.bytes % kPage != 0)
    return failure{EINVAL, "memory shared with a peer: a size that cannot be was named"};
  shared_memory out;
  const auto path = format("/proc/%d/fd/%d", of.pid, of.fd);
  out.fd_ = unique_fd(real_device_io(), ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!out.fd_) return not_shared("opening " + path);
  struct stat info {};
  if (fstat(out.fd_.get(), &info) != 0) return not_shared("fstat");
  // The number may name another file by now, and a short one would fault.
  if (info.st_ino != of.inode || static_cast<std::uint64_t>(info.st_size) != of.bytes)
    return failure{ESTALE, "memory shared with a peer: the file is not the one that was named"};
  out.name_ = of;
  if (auto done = out.map(); !done) return done.error();
  return out;
}

status shared_memory::map() {
  void* const at = mmap(nullptr, name_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) return not_shared("mmap");
  madvise(at, name_.bytes, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(at);
  return {};
}

shared_memory::~shared_memory() {
  if (data_ != nullptr) munmap(data_, name_.bytes);
}

}  // namespace pl::stream
