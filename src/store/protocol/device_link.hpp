// SPDX-License-Identifier: Apache-2.0
// How a client hands device memory to its server: a socket of packets beside the connection (opcode::device_link), and words
// in memory that both ends map.
//
//   client                                        server
//                            <-- region (host) -- the words, once
//   region (device) -->                           imported: bound to the server's DMA channels
//                            <-- device_reply --  its number, or why not
//   device_release  -->                           forgotten when no transfer uses it any more; no answer
//
// Regions travel as dma/shared_region.hpp sends them. One region is asked for at a time. When the server's end closes, no
// transfer of this connection is under way any more.
//
// The words say whose the caller's memory is. A client that gives up takes its word back, and the server then never touches
// the memory; a transfer that has begun ends first. A client can only harm itself by writing what it should not.
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
  std::uint32_t memory = 0;  // the number by which requests name it
  char text[244] = {};       // why not, ends with 0
};
static_assert(sizeof(device_reply) == 256);

// Transfers under way on one connection.
inline constexpr std::uint32_t kDeviceSlots = 1024;
inline constexpr std::size_t kDeviceSlotBytes = kDeviceSlots * sizeof(std::uint64_t);

class device_slots {
 public:
  enum class state : std::uint64_t { free, wanted, claimed, ended, cancelled };
  device_slots() = default;
  // `memory` has kDeviceSlotBytes and outlives the object.
  explicit device_slots(std::byte* memory) : words_(reinterpret_cast<std::uint64_t*>(memory)) {}

  // Client: a transfer is asked for. No other has the slot.
  void want(std::uint32_t slot, std::uint64_t ticket) const noexcept { store(slot, word(ticket, state::wanted)); }
  // Client: false: the server has begun, and the memory is the caller's once has_ended().
  bool cancel(std::uint32_t slot, std::uint64_t ticket) const noexcept { return change(slot, ticket, state::cancelled); }
  bool has_ended(std::uint32_t slot, std::uint64_t ticket) const noexcept {
    return at(slot).load(std::memory_order_acquire) == word(ticket, state::ended);
  }
  // Server: false: the client has taken its memory back.
  bool claim(std::uint32_t slot, std::uint64_t ticket) const noexcept { return change(slot, ticket, state::claimed); }
  // Server: the memory is not touched any more.
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
