// SPDX-License-Identifier: Apache-2.0
#include "triggered/shared_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::triggered {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kMaxBytes = 1u << 30;

failure not_shared(const std::string& step) {
  const int code = errno;
  return failure{code, format("memory shared with a peer: %s failed: %s", step.c_str(), errno_text(code).c_str())};
}

}  // namespace

result<shared_memory> shared_memory::make(const char* label, std::size_t bytes) {
  const auto whole = (bytes + kPage - 1) / kPage * kPage;
  auto made = sealed_memory::make(label, whole);
  if (!made) return std::move(made).error();
  shared_memory out;
  out.fd_ = std::move(made->fd);
  out.name_ = {getpid(), out.fd_.get(), made->inode, whole};
  if (auto done = out.map(); !done) return done.error();
  return out;
}

result<shared_memory> shared_memory::open(const name& source) {
  if (source.bytes == 0 || source.bytes > kMaxBytes || source.bytes % kPage != 0)
    return failure{EINVAL, "memory shared with a peer: a size that cannot be was named"};
  auto opened = sealed_memory::open(source.pid, source.fd, source.inode, source.bytes);
  if (!opened) return std::move(opened).error();
  if (opened->bytes != source.bytes)
    return failure{ESTALE, "memory shared with a peer: the file is not the one that was named"};
  shared_memory out;
  out.fd_ = std::move(opened->fd);
  out.name_ = source;
  if (auto done = out.map(); !done) return done.error();
  return out;
}

status shared_memory::map() {
  void* const mapped = mmap(nullptr, name_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapped == MAP_FAILED) return not_shared("mmap");
  madvise(mapped, name_.bytes, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(mapped);
  return {};
}

shared_memory::~shared_memory() {
  if (data_ != nullptr) munmap(data_, name_.bytes);
}

}  // namespace pl::triggered
