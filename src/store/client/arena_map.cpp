// SPDX-License-Identifier: Apache-2.0
#include "store/client/arena_map.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.hpp"

namespace pl::store_client {

result<std::unique_ptr<arena_map>> arena_map::map(int fd, const store_protocol::arena& arena, copy::planner* copies) {
  struct stat about {};
  const bool fits = arena.chunk_bytes > 0 && arena.size_bytes > 0 && fstat(fd, &about) == 0 &&
                    static_cast<std::uint64_t>(about.st_size) >= arena.size_bytes;
  const int protection = arena.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = fits ? mmap(nullptr, arena.size_bytes, protection, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int code = fits ? errno : EPROTO;
  close(fd);
  if (address == MAP_FAILED)
    return failure{code, format("mapping the store's memory (%llu bytes): %s",
                                static_cast<unsigned long long>(arena.size_bytes), errno_text(code).c_str())};
  // A forked child must not inherit the mapping: it would write where it has no grant.
  madvise(address, arena.size_bytes, MADV_DONTFORK);
  return std::unique_ptr<arena_map>(new arena_map(static_cast<std::byte*>(address), arena, copies));
}

arena_map::arena_map(std::byte* base, const store_protocol::arena& arena, copy::planner* copies)
    : base_(base),
      layout_(arena),
      copies_(copies),
      chunks_((arena.size_bytes + arena.chunk_bytes - 1) / arena.chunk_bytes) {}

arena_map::~arena_map() {
  chunks_.clear();
  munmap(base_, layout_.size_bytes);
}

result<std::byte*> arena_map::at(const store_protocol::extent& extent) const {
  if (extent.offset > layout_.size_bytes || extent.bytes > layout_.size_bytes - extent.offset)
    return failure{EPROTO, "the store named memory outside its arena"};
  return base_ + extent.offset;
}

void arena_map::prepare(const std::vector<store_protocol::extent>& extents, int device) {
  if (copies_ == nullptr || layout_.read_only) return;
  const std::lock_guard hold(lock_);
  for (const auto& one : extents) {
    if (one.bytes == 0 || !at(one)) continue;
    for (std::uint64_t i = one.offset / layout_.chunk_bytes; i <= (one.offset + one.bytes - 1) / layout_.chunk_bytes; ++i) {
      if (std::exchange(chunks_[i].tried, true)) continue;
      const std::uint64_t begin = i * layout_.chunk_bytes;
      const std::uint64_t bytes = std::min(layout_.chunk_bytes, layout_.size_bytes - begin);
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
