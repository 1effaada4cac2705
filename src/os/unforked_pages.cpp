// SPDX-License-Identifier: Apache-2.0
#include "os/unforked_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "os/fork_guard.hpp"

namespace pl {

result<unforked_pages> unforked_pages::make(std::size_t size_bytes, sharing kind) {
  constexpr std::size_t kHugePageBytes = 2u << 20;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t granule = size_bytes >= kHugePageBytes ? kHugePageBytes : page;
  if (size_bytes > SIZE_MAX - granule) return failure{ENOMEM, format("%zu bytes of host memory: too many", size_bytes)};
  unforked_pages made;
  made.size_bytes_ = (size_bytes + granule - 1) / granule * granule;
  made.epoch_ = claim_process_epoch();
  const int flags = (kind == sharing::shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
  void* const pages = mmap(nullptr, made.size_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (pages == MAP_FAILED)
    return failure{errno, format("%zu bytes of host memory: %s", made.size_bytes_, errno_text(errno).c_str())};
  made.data_ = static_cast<std::byte*>(pages);
  madvise(pages, made.size_bytes_, MADV_DONTFORK);
  if (granule == kHugePageBytes) madvise(pages, made.size_bytes_, MADV_HUGEPAGE);
  std::memset(pages, 0, made.size_bytes_);
  return made;
}

void unforked_pages::drop() noexcept {
  // In a child, something else may have been mapped there since.
  if (data_ != nullptr && process_epoch() == epoch_) munmap(data_, size_bytes_);
  data_ = nullptr;
}

}  // namespace pl
