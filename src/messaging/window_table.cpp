// SPDX-License-Identifier: Apache-2.0
#include "messaging/window_table.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::messaging {

window_table::~window_table() {
  if (shared_ != nullptr) munmap(shared_, bytes_);
}

void window_table::swap(window_table& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(name_, other.name_);
  std::swap(probe_, other.probe_);
  std::swap(shared_, other.shared_);
  std::swap(bytes_, other.bytes_);
}

status window_table::map(int fd, int ranks) {
  const std::size_t bytes = size_for(ranks);
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED)
    return failure{errno, format("the table of windows cannot be mapped: %s", errno_text(errno).c_str())};
  madvise(mapping, bytes, MADV_DONTFORK);
  shared_ = static_cast<shared*>(mapping);
  bytes_ = bytes;
  return {};
}

// ---- The owner

result<window_table> window_table::make(int ranks) {
  auto made = sealed_memory::make("peerlane-windows", size_for(ranks));
  if (!made) return std::move(made).error();
  window_table out;
  out.fd_ = std::move(made->fd);
  if (auto done = out.map(out.fd_.get(), ranks); !done) return done.error();
  out.probe_ = std::make_unique<std::uint64_t>(0);
  if (getrandom(out.probe_.get(), sizeof *out.probe_, 0) != static_cast<ssize_t>(sizeof *out.probe_))
    return failure{EIO, "the kernel provides no random bytes"};
  out.name_ = {getpid(), out.fd_.get(), made->inode, reinterpret_cast<std::uint64_t>(out.probe_.get()), *out.probe_};
  return out;
}

void window_table::publish(std::uint32_t id, const window_place& place) noexcept {
  if (shared_ == nullptr) return;
  row& entry = row_of(id);
  constexpr std::uint64_t kStateMask = 3;
  if ((entry.tag.load(std::memory_order_relaxed) & kStateMask) == static_cast<std::uint64_t>(state::live)) return;
  entry.tag.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.memory_and_fd.store(
      std::uint64_t{static_cast<std::uint32_t>(place.memory)} << 32 | static_cast<std::uint32_t>(place.fd),
      std::memory_order_relaxed);
  entry.inode.store(place.inode, std::memory_order_relaxed);
  entry.address.store(place.address, std::memory_order_relaxed);
  entry.bytes.store(place.bytes, std::memory_order_relaxed);
  entry.tag.store(tag_of(id, state::live), std::memory_order_release);
}

void window_table::end(std::uint32_t id) noexcept {
  if (shared_ == nullptr) return;
  std::uint64_t expected = tag_of(id, state::live);
  row_of(id).tag.compare_exchange_strong(expected, tag_of(id, state::ended), std::memory_order_seq_cst);
}

bool window_table::is_used_by(int rank, std::uint32_t id) const noexcept {
  return shared_ != nullptr && user_of(rank).window.load(std::memory_order_seq_cst) == id;
}

// ---- Other processes

result<window_table> window_table::open(const name& file, int ranks) {
  const auto opened = sealed_memory::open(file.pid, file.fd, file.inode, size_for(ranks));
  if (!opened) return opened.error();
  window_table out;
  if (auto done = out.map(opened->fd.get(), ranks); !done) return done.error();
  out.name_ = file;
  return out;
}

window_table::state window_table::find(std::uint32_t id, window_place& place) const noexcept {
  const row& entry = row_of(id);
  const auto before = entry.tag.load(std::memory_order_acquire);
  if (before == tag_of(id, state::ended)) return state::ended;
  if (before != tag_of(id, state::live)) return state::absent;
  const auto memory_and_fd = entry.memory_and_fd.load(std::memory_order_relaxed);
  place.memory = static_cast<window_place::kind>(memory_and_fd >> 32);
  place.fd = static_cast<std::int32_t>(memory_and_fd & 0xffff'ffffu);
  place.inode = entry.inode.load(std::memory_order_relaxed);
  place.address = entry.address.load(std::memory_order_relaxed);
  place.bytes = entry.bytes.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  return entry.tag.load(std::memory_order_relaxed) == before ? state::live : state::ended;
}

bool window_table::is_live(std::uint32_t id) const noexcept {
  return row_of(id).tag.load(std::memory_order_acquire) == tag_of(id, state::live);
}

bool window_table::enter(int own_rank, std::uint32_t id) noexcept {
  user_of(own_rank).window.store(id, std::memory_order_seq_cst);
  if (row_of(id).tag.load(std::memory_order_seq_cst) == tag_of(id, state::live)) return true;
  leave(own_rank);
  return false;
}

void window_table::leave(int own_rank) noexcept { user_of(own_rank).window.store(0, std::memory_order_release); }

}  // namespace pl::messaging
