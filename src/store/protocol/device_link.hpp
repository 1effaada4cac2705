// SPDX-License-Identifier: Apache-2.0
// How a client hands device memory to its server: a packet socket beside the connection (opcode::device_link), and
// words in memory that both ends map.
//
//   client                                        server
//                            <-- region (host) -- the words, once
//   region (device) -->                           imported: bound to the server's DMA channels
//                            <-- device_reply --  its number, or why not
//   device_release  -->                           forgotten once no transfer uses it; no answer
//
// Regions are sent as in dma/shared_region.hpp. One region is requested at a time. When the server's end closes, no
// transfer of this connection is in progress any more.
//
// The words say who owns the caller's memory. A client that gives up takes its word back, and the server then never
// touches the memory; a transfer that has begun ends first. By writing wrong words a client can only harm itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pl::store_protocol {

inline constexpr std::uint32_t kDeviceLinkMagic = 0x444c4c50;  // "PLLD"

struct device_release {
  std::uint32_t magic = kDeviceLinkMagic;
  std::uint32_t memory = 0;
};
static_assert(sizeof(device_release) == 8);

struct device_reply {
  std::uint32_t magic = kDeviceLinkMagic;
  std::int32_t status = 0;   // errno value
  std::uint32_t memory = 0;  // by which requests name it
  char text[244] = {};       // the reason, with a terminating 0
};
static_assert(sizeof(device_reply) == 256);

// Limit of transfers in progress on one connection.
inline constexpr std::uint32_t kDeviceSlots = 1024;
inline constexpr std::size_t kDeviceSlotBytes = kDeviceSlots * sizeof(std::uint64_t);

class device_slots {
 public:
  enum class state : std::uint64_t { free, wanted, claimed, ended, cancelled };
  device_slots() = default;
  // `memory` has kDeviceSlotBytes and must outlive the object.
  explicit device_slots(std::byte* memory) : words_(reinterpret_cast<std::uint64_t*>(memory)) {}

  // Client: requests a transfer. No other transfer may use the slot.
  void want(std::uint32_t slot, std::uint64_t ticket) const noexcept { store(slot, word(ticket, state::wanted)); }
  // Client: takes the memory back. Returns false if the server has begun; the memory is the caller's once has_ended().
  bool cancel(std::uint32_t slot, std::uint64_t ticket) const noexcept { return change(slot, ticket, state::cancelled); }
  bool has_ended(std::uint32_t slot, std::uint64_t ticket) const noexcept {
    return at(slot).load(std::memory_order_acquire) == word(ticket, state::ended);
  }
  // Server: claims the memory. Returns false if the client has taken it back.
  bool claim(std::uint32_t slot, std::uint64_t ticket) const noexcept { return change(slot, ticket, state::claimed); }
  // Server: no longer touches the memory.
  void end(std::uint32_t slot, std::uint64_t ticket) const noexcept { store(slot, word(ticket, state::ended)); }

 private:
  static std::uint64_t word(std::uint64_t ticket, state now) noexcept {
    return ticket << 3 | static_cast<std::uint64_t>(now);
  }
  std::atomic_ref<std::uint64_t> at(std::uint32_t slot) const noexcept { return std::atomic_ref(words_[slot]); }
  void store(std::uint32_t slot, std::uint64_t now) const noexcept { at(slot).store(now, std::memory_order_release); }
  bool change(std::uint32_t slot, std::uint64_t ticket, state next) const noexcept {
    std::uint64_t expected = word(ticket, state::wanted);
    return at(slot).compare_exchange_strong(expected, word(ticket, next), std::memory_order_acq_rel);
  }
  std::uint64_t* words_ = nullptr;
};

}  // namespace pl::store_protocol
