// SPDX-License-Identifier: Apache-2.0
// Device memory of this process in the store's hands: the client's end of the device link (protocol/device_link.hpp).
//
// An allocation is handed over when an operation first uses it, and kept: it is found again by CUDA's id, so that what was
// freed and allocated anew at the same address is never mistaken for it. The store lets go of memory that the application
// has freed within 0.1 s.
//
// Thread-safe. Belongs to one connection.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "copy/mapping_cache.hpp"
#include "copy/memory_window.hpp"
#include "cuda/pointer.hpp"
#include "dma/shared_region.hpp"
#include "store/protocol/device_link.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

class device_link {
 public:
  // Takes `fd` over. ETIMEDOUT, EPROTO: the store's words did not come.
  static result<std::shared_ptr<device_link>> open(int fd, unsigned timeout_ms);
  device_link(const device_link&) = delete;
  device_link& operator=(const device_link&) = delete;

  // The store's number of the memory. Its own errno: limits, no channels; EPIPE, ETIMEDOUT: the link is of no use any more.
  result<std::uint32_t> import(const dma::shared_region& region);
  // Never waits: what a store that is stopped does not take is sent with a later call.
  void release(std::uint32_t memory) noexcept;

  // A slot whose transfer is wanted; nothing: all are taken.
  std::optional<store_protocol::device_part> take_slot();
  void give_slot(const store_protocol::device_part& part);
  // The store does not touch the transfer's memory any more when this returns true. False: it has begun and does not end,
  // which only a stopped process can bring about.
  bool settle(const store_protocol::device_part& part) const;

 private:
  device_link(unique_fd socket, dma::shared_host words);
  bool is_closed() const noexcept;
  void send_releases() noexcept;

  const unique_fd socket_;
  const dma::shared_host words_;
  const store_protocol::device_slots slots_;
  std::mutex asking_;
  bool is_broken_ = false;  // an answer may still come that nobody waits for
  std::mutex releases_mutex_;
  std::vector<std::uint32_t> unsent_;
  std::mutex slots_mutex_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t last_ticket_ = 0;
};

// What of this process's memory the store has.
class device_memories {
 public:
  // `cuda` outlives the object.
  device_memories(const cu::driver_table& cuda, std::shared_ptr<device_link> link);

  struct use {
    copy::mapping_cache::hold hold;  // the store keeps the memory meanwhile
    std::uint32_t memory = 0;
    std::uint64_t offset = 0;
    // What else it is good for, without a lookup: values that lie side by side are thousands in one call.
    copy::memory_identity identity;
    address_range exact;
    bool covers(const cu::pointer_info& info, address_range wanted) const {
      return exact.contains(wanted) && info.allocation.contains(wanted) && copy::identity_of(info) == identity;
    }
  };
  // `info` is what the driver said of `pointer`. Errors: mapping_cache::find, device_link::import.
  result<use> find(const cu::pointer_info& info, std::uint64_t pointer, std::uint64_t bytes);
  const std::shared_ptr<device_link>& link() const noexcept { return link_; }

 private:
  const cu::driver_table& cuda_;
  std::shared_ptr<device_link> link_;
  copy::mapping_cache cache_;
};

// An operation's memory in the store's hands.
struct handed_memory {
  handed_memory() = default;
  handed_memory(handed_memory&&) = default;
  // The use ends before its owner may.
  handed_memory& operator=(handed_memory&& other) noexcept {
    use = std::move(other.use);
    owner = std::move(other.owner);
    has_slot = std::exchange(other.has_slot, false);
    return *this;
  }
  ~handed_memory() = default;

  std::shared_ptr<device_memories> owner;  // null: it goes another way
  device_memories::use use;
  bool has_slot = false;
};

}  // namespace pl::store_client
