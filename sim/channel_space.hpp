// SPDX-License-Identifier: Apache-2.0
// Memory at the GPU addresses that DMA channels use. A client of the resource manager makes such address spaces and puts
// memory into them; nothing of CUDA's own addresses is in there.
//
// Not thread-safe: the resource manager's lock covers it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace pl::sim {

// What a GPU address or a CPU mapping shows. Device memory is a file that anybody may map; host memory is the caller's.
class channel_memory {
 public:
  // `pinned`: another mapping of host memory, which stays mapped (sim/host_memory.hpp).
  channel_memory(std::byte* bytes, std::uint64_t size_bytes, int fd, std::byte* pinned = nullptr)
      : bytes_(bytes), pinned_(pinned), size_bytes_(size_bytes), fd_(fd) {}
  virtual ~channel_memory() = default;
  channel_memory(const channel_memory&) = delete;
  channel_memory& operator=(const channel_memory&) = delete;

  std::byte* bytes() const { return bytes_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_; }
  bool is_host() const { return fd_ < 0; }

  bool read(std::uint64_t offset, void* out, std::size_t count) const;
  bool write(std::uint64_t offset, const void* in, std::size_t count) const;
  // An aligned 32-bit word, as one access.
  std::optional<std::uint32_t> load_word(std::uint64_t offset) const;
  bool store_word(std::uint64_t offset, std::uint32_t value) const;

 private:
  bool is_inside(std::uint64_t offset, std::uint64_t count) const {
    return offset <= size_bytes_ && count <= size_bytes_ - offset;
  }
  bool may_be_gone() const { return is_host() && pinned_ == nullptr; }
  std::byte* place(std::uint64_t offset) const { return (pinned_ != nullptr ? pinned_ : bytes_) + offset; }
  bool can_reach(std::uint64_t offset) const;

  std::byte* bytes_;
  std::byte* pinned_;
  std::uint64_t size_bytes_;
  int fd_;
};
using channel_memory_ref = std::shared_ptr<channel_memory>;

// Zeroed memory that belongs to no CUDA object. Null: the operating system has none.
channel_memory_ref make_anonymous_memory(std::uint64_t size_bytes, unsigned board);
// Memory that another process gave us by a descriptor, which stays the caller's, and its board. Null: it is no memory of a
// simulated GPU.
channel_memory_ref adopt_memory(int fd, unsigned& board);

class channel_space {
 public:
  // Spaces begin at addresses of their own, so that an address of one faults in the other.
  explicit channel_space(unsigned number);

  // 0: there is no room. `is_peer`: the memory is another board's.
  std::uint64_t map(channel_memory_ref memory, std::uint32_t handle, std::uint64_t offset, std::uint64_t length,
                    bool is_peer = false);
  bool unmap(std::uint64_t address) { return maps_.erase(address) != 0; }
  // Drops whatever shows the memory object of this handle, and says how many mappings that were.
  std::size_t unmap_all(std::uint32_t handle);
  std::size_t live_maps() const { return maps_.size(); }

  // False or nothing: there is no memory at that address, or not so much.
  bool contains(std::uint64_t address, std::uint64_t count) const;
  bool is_peer(std::uint64_t address) const;
  bool read(std::uint64_t address, void* out, std::size_t count) const;
  bool write(std::uint64_t address, const void* in, std::size_t count) const;
  std::optional<std::uint32_t> load_word(std::uint64_t address) const;
  bool store_word(std::uint64_t address, std::uint32_t value) const;

 private:
  struct mapping {
    channel_memory_ref memory;
    std::uint32_t handle;
    std::uint64_t offset, length;
    bool is_peer;
  };
  const mapping* find(std::uint64_t address, std::uint64_t count, std::uint64_t& offset) const;
  bool is_free(std::uint64_t begin, std::uint64_t end) const;

  std::map<std::uint64_t, mapping> maps_;
  std::uint64_t next_;
};

}  // namespace pl::sim
