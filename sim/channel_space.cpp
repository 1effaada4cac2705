// SPDX-License-Identifier: Apache-2.0
#include "sim/channel_space.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/file_limit.hpp"
#include "sim/word_order.hpp"

namespace pl::sim {
namespace {

// Entries of a ring hold 40 bits of address.
constexpr std::uint64_t kLowestAddress = 0x2'0000'0000, kAddressEnd = std::uint64_t{1} << 40;
constexpr std::uint64_t kSpaceStep = std::uint64_t{32} << 30;
constexpr unsigned kDistinctSpaces = 16;
constexpr std::uint64_t kMappingStep = 2u << 20;

// ThreadSanitizer cannot know that the doorbell orders what a program did before it and what the engine does behind it: the
// program rings through a mapping of its own. The kernel's copies are invisible to it.
#if defined(__SANITIZE_THREAD__)
constexpr bool kAlwaysThroughKernel = true;
#else
constexpr bool kAlwaysThroughKernel = false;
#endif

// A mapping of `length` with a hole behind it: what runs over its end does not reach the next.
constexpr std::uint64_t span_of(std::uint64_t length) {
  return (length + 2 * kMappingStep - 1) / kMappingStep * kMappingStep;
}

class anonymous_memory final : public channel_memory {
 public:
  using channel_memory::channel_memory;
  ~anonymous_memory() override {
    munmap(bytes(), size_bytes());
    close(fd());
  }
};

enum class direction { in, out };

// Aligned 8-byte words whole and once, as an engine writes them for a CPU that looks on (arch/arrival.hpp), which no race
// detector can know.
__attribute__((no_sanitize("thread"))) void store_whole_words(std::byte* target, const std::byte* in, std::size_t count) {
  using word [[gnu::may_alias]] = std::uint64_t;
  const auto is_aligned = [&] { return reinterpret_cast<std::uintptr_t>(target) % sizeof(word) == 0; };
  const auto store_byte = [&] {
    *reinterpret_cast<volatile std::byte*>(target++) = *in++;
    --count;
  };
  while (count > 0 && !is_aligned()) store_byte();
  for (; count >= sizeof(word); count -= sizeof(word), target += sizeof(word), in += sizeof(word)) {
    word value;
    __builtin_memcpy(&value, in, sizeof value);
    __atomic_store_n(reinterpret_cast<word*>(target), value, __ATOMIC_RELEASE);
  }
  while (count > 0) store_byte();
}

// Bytes of this process's own memory that may be gone.
bool move_host_bytes(std::byte* host, void* local, std::size_t count, direction way) {
  for (std::size_t done = 0; done < count;) {
    const iovec ours{static_cast<std::byte*>(local) + done, count - done};
    const iovec theirs{host + done, count - done};
    const ssize_t moved = way == direction::in ? process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0)
                                               : process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0);
    if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {  // a container that forbids the call
      if (way == direction::in) std::memcpy(ours.iov_base, theirs.iov_base, ours.iov_len);
      else store_whole_words(host + done, static_cast<const std::byte*>(local) + done, count - done);
      return true;
    }
    if (moved <= 0) return false;
    done += static_cast<std::size_t>(moved);
  }
  return true;
}

// Each word once, as an engine does. memcpy writes four bytes as two stores of the same four: who has seen the first one and
// set the word back would then find it set again.
void store_once(std::byte* target, const void* in, std::size_t count) {
  constexpr std::size_t kSmall = 64;
  const auto is_aligned = reinterpret_cast<std::uintptr_t>(target) % sizeof(std::uint32_t) == 0;
  if (count > kSmall || count % sizeof(std::uint32_t) != 0 || !is_aligned) {
    std::memcpy(target, in, count);
    return;
  }
  for (std::size_t done = 0; done < count; done += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(in) + done, sizeof word);
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(target + done), word, __ATOMIC_RELEASE);
  }
}

}  // namespace

bool channel_memory::read(std::uint64_t offset, void* out, std::size_t count) const {
  if (!is_inside(offset, count)) return false;
  if (may_be_gone() || kAlwaysThroughKernel) return move_host_bytes(place(offset), out, count, direction::in);
  std::memcpy(out, place(offset), count);
  return true;
}

bool channel_memory::write(std::uint64_t offset, const void* in, std::size_t count) const {
  if (!is_inside(offset, count)) return false;
  if (pinned_ != nullptr) return store_whole_words(place(offset), static_cast<const std::byte*>(in), count), true;
  if (may_be_gone() || kAlwaysThroughKernel)
    return move_host_bytes(bytes_ + offset, const_cast<void*>(in), count, direction::out);
  store_once(bytes_ + offset, in, count);
  return true;
}

bool channel_memory::can_reach(std::uint64_t offset) const {
  std::uint32_t ignored = 0;
  if (offset % sizeof ignored != 0 || !is_inside(offset, sizeof ignored)) return false;
  return !may_be_gone() || move_host_bytes(bytes_ + offset, &ignored, sizeof ignored, direction::in);
}

std::optional<std::uint32_t> channel_memory::load_word(std::uint64_t offset) const {
  if (!can_reach(offset)) return {};
  if (std::uint32_t value = 0; kAlwaysThroughKernel) {
    if (!read(offset, &value, sizeof value)) return {};
    after_loading_word();
    return value;
  }
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(place(offset)), __ATOMIC_ACQUIRE);
}

bool channel_memory::store_word(std::uint64_t offset, std::uint32_t value) const {
  if (!can_reach(offset)) return false;
  before_storing_word();
  if (is_host()) before_store_in_view(reinterpret_cast<std::uint64_t>(bytes_ + offset));  // dma::channel looks there
  if (kAlwaysThroughKernel && pinned_ == nullptr) return write(offset, &value, sizeof value);
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(place(offset)), value, __ATOMIC_RELEASE);
  return true;
}

channel_memory_ref adopt_memory(int fd, unsigned& board) {
  char link[64] = {}, name[128] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  struct stat info {};
  if (readlink(link, name, sizeof name - 1) < 0 || std::sscanf(name, "/memfd:peerlane-sim:%u", &board) != 1) return nullptr;
  const int own = fstat(fd, &info) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (own < 0) return nullptr;
  const auto size_bytes = static_cast<std::uint64_t>(info.st_size);
  void* const view = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  if (view == MAP_FAILED) {
    close(own);
    return nullptr;
  }
  return std::make_shared<anonymous_memory>(static_cast<std::byte*>(view), size_bytes, own);
}

// The name tells an importer which board the memory lies on, as that of CUDA's objects does.
channel_memory_ref make_anonymous_memory(std::uint64_t size_bytes, unsigned board) {
  char name[64];
  std::snprintf(name, sizeof name, "peerlane-sim:%u", board);
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* view = MAP_FAILED;
  const file_limit_as_error during_growth;
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) == 0)
    view = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (view == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  return std::make_shared<anonymous_memory>(static_cast<std::byte*>(view), size_bytes, fd);
}

channel_space::channel_space(unsigned number) : next_(kLowestAddress + number % kDistinctSpaces * kSpaceStep) {}

bool channel_space::is_free(std::uint64_t begin, std::uint64_t end) const {
  const auto after = maps_.lower_bound(end);
  if (after == maps_.begin()) return true;
  const auto& [base, last] = *std::prev(after);
  return base + span_of(last.length) <= begin;
}

// Addresses are taken in turn, so that one that was given back stays a fault for long.
std::uint64_t channel_space::map(channel_memory_ref memory, std::uint32_t handle, std::uint64_t offset, std::uint64_t length,
                                 bool is_peer) {
  const std::uint64_t span = span_of(length);
  if (span > kAddressEnd - kLowestAddress) return 0;
  std::uint64_t address = next_;
  for (bool has_wrapped = false; address + span > kAddressEnd || !is_free(address, address + span);) {
    if (address + span > kAddressEnd) {
      if (has_wrapped) return 0;
      has_wrapped = true;
      address = kLowestAddress;
      continue;
    }
    const auto& [base, last] = *std::prev(maps_.lower_bound(address + span));
    address = base + span_of(last.length);
  }
  next_ = address + span;
  maps_[address] = {std::move(memory), handle, offset, length, is_peer};
  return address;
}

std::size_t channel_space::unmap_all(std::uint32_t handle) {
  return std::erase_if(maps_, [handle](const auto& entry) { return entry.second.handle == handle; });
}

const channel_space::mapping* channel_space::find(std::uint64_t address, std::uint64_t count, std::uint64_t& offset) const {
  auto found = maps_.upper_bound(address);
  if (found == maps_.begin()) return nullptr;
  --found;
  const std::uint64_t inside = address - found->first;
  if (inside > found->second.length || count > found->second.length - inside) return nullptr;
  offset = found->second.offset + inside;
  return &found->second;
}

bool channel_space::is_peer(std::uint64_t address) const {
  std::uint64_t offset = 0;
  const mapping* const found = find(address, 1, offset);
  return found != nullptr && found->is_peer;
}

bool channel_space::contains(std::uint64_t address, std::uint64_t count) const {
  std::uint64_t offset = 0;
  return find(address, count, offset) != nullptr;
}

bool channel_space::read(std::uint64_t address, void* out, std::size_t count) const {
  std::uint64_t offset = 0;
  const mapping* const found = find(address, count, offset);
  return found != nullptr && found->memory->read(offset, out, count);
}

bool channel_space::write(std::uint64_t address, const void* in, std::size_t count) const {
  std::uint64_t offset = 0;
  const mapping* const found = find(address, count, offset);
  return found != nullptr && found->memory->write(offset, in, count);
}

std::optional<std::uint32_t> channel_space::load_word(std::uint64_t address) const {
  std::uint64_t offset = 0;
  const mapping* const found = find(address, sizeof(std::uint32_t), offset);
  return found != nullptr ? found->memory->load_word(offset) : std::nullopt;
}

bool channel_space::store_word(std::uint64_t address, std::uint32_t value) const {
  std::uint64_t offset = 0;
  const mapping* const found = find(address, sizeof value, offset);
  return found != nullptr && found->memory->store_word(offset, value);
}

}  // namespace pl::sim
