// SPDX-License-Identifier: Apache-2.0
#include "store/client/arena_map.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.hpp"

namespace pl::store_client {

result<std::unique_ptr<arena_map>> arena_map::map(int fd, const store_wire::arena& what, copy::planner* copies) {
  struct stat about {};
  const bool fits = what.chunk_bytes > 0 && what.size_bytes > 0 && fstat(fd, &about) == 0 &&
                    static_cast<std::uint64_t>(about.st_size) >= what.size_bytes;
  const int protection = what.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* at = fits ? mmap(nullptr, what.size_bytes, protection, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int code = fits ? errno : EPROTO;
  close(fd);
  if (at == MAP_FAILED)
    return failure{code, format("mapping the store's memory (%llu bytes): %s",
                                static_cast<unsigned long long>(what.size_bytes), errno_text(code).c_str())};
  // A child would share it, and write where it has no grant.
  madvise(at, what.size_bytes, MADV_DONTFORK);
  return std::unique_ptr<arena_map>(new arena_map(static_cast<std::byte*>(at), what, copies));
}

arena_map::arena_map(std::byte* base, const store_wire::arena& what, copy::planner* copies)
    : base_(base), what_(what), copies_(copies), chunks_((what.size_bytes + what.chunk_bytes - 1) / what.chunk_bytes) {}

arena_map::~arena_map() {
  chunks_.clear();
  munmap(base_, what_.size_bytes);
}

result<std::byte*> arena_map::at(const store_wire::extent& where) const {
  if (where.offset > what_.size_bytes || where.bytes > what_.size_bytes - where.offset)
    return failure{EPROTO, "the store named memory outside its arena"};
  return base_ + where.offset;
}

void arena_map::prepare(const std::vector<store_wire::extent>& extents, int device) {
  if (copies_ == nullptr || what_.read_only) return;
  const std::lock_guard hold(lock_);
  for (const auto& one : extents) {
    if (one.bytes == 0 || !at(one)) continue;
    for (std::uint64_t i = one.offset / what_.chunk_bytes; i <= (one.offset + one.bytes - 1) / what_.chunk_bytes; ++i) {
      if (std::exchange(chunks_[i].tried, true)) continue;
      const std::uint64_t begin = i * what_.chunk_bytes;
      const std::uint64_t bytes = std::min(what_.chunk_bytes, what_.size_bytes - begin);
      auto pinned = copies_->register_host_memory(base_ + begin, bytes, device);
      if (pinned) chunks_[i].pinned = *std::move(pinned);
      else why_not_ = pinned.error().message;
    }
  }
}

std::string arena_map::why_not() const {
  const std::lock_guard hold(lock_);
  return why_not_;
}

}  // namespace pl::store_client
