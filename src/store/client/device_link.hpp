// SPDX-License-Identifier: Apache-2.0
// Device memory of this process that the store can access: the client's end of the device link
// (protocol/device_link.hpp).
//
// An allocation is handed over when an operation first uses it, and kept. It is identified by CUDA's id, so that memory
// that was freed and allocated again at the same address is never mistaken for it. The store releases memory that the
// application has freed within 0.1 s.
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
  // Takes ownership of `fd`. ETIMEDOUT or EPROTO if the store's words do not arrive.
  static result<std::shared_ptr<device_link>> open(int fd, unsigned timeout_ms);
  device_link(const device_link&) = delete;
  device_link& operator=(const device_link&) = delete;

  // The store's number of the memory. Fails with the store's errno (limits, no channels), or with EPIPE or ETIMEDOUT if
  // the link is unusable.
  result<std::uint32_t> import(const dma::shared_region& region);
  // Never waits: what a stopped store does not take is sent with a later call.
  void release(std::uint32_t memory) noexcept;

  // A slot for a transfer; nothing if all are taken.
  std::optional<store_protocol::device_part> take_slot();
  void give_slot(const store_protocol::device_part& part);
  // Returns true if the store no longer touches the transfer's memory. Returns false if it has begun and does not end,
  // which happens only if the process is stopped.
  bool settle(const store_protocol::device_part& part) const;

 private:
  device_link(unique_fd socket, dma::shared_host words);
  bool is_closed() const noexcept;
  void send_releases() noexcept;

  const unique_fd socket_;
  const dma::shared_host words_;
  const store_protocol::device_slots slots_;
  std::mutex asking_;
  bool is_broken_ = false;  // an answer that nobody waits for may still arrive
  std::mutex releases_mutex_;
  std::vector<std::uint32_t> unsent_;
  std::mutex slots_mutex_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t last_ticket_ = 0;
};

// The memory of this process that the store has.
class device_memories {
 public:
  // `cuda` must outlive the object.
  device_memories(const cu::driver_table& cuda, std::shared_ptr<device_link> link);

  struct use {
    copy::mapping_cache::hold hold;  // the store keeps the memory meanwhile
    std::uint32_t memory = 0;
    std::uint64_t offset = 0;
    // Where else this use applies, without a lookup: a call may have thousands of values that lie side by side.
    copy::memory_identity identity;
    address_range exact;
    bool covers(const cu::pointer_info& info, address_range wanted) const {
      return exact.contains(wanted) && info.allocation.contains(wanted) && copy::identity_of(info) == identity;
    }
  };
  // `info` is what the driver returned for `pointer`. Errors: as mapping_cache::find and device_link::import.
  result<use> find(const cu::pointer_info& info, std::uint64_t pointer, std::uint64_t bytes);
  const std::shared_ptr<device_link>& link() const noexcept { return link_; }

 private:
  const cu::driver_table& cuda_;
  std::shared_ptr<device_link> link_;
  copy::mapping_cache cache_;
};

// An operation's memory, handed over to the store.
struct fd_memory {
  fd_memory() = default;
  fd_memory(fd_memory&&) = default;
  // The use must end before its owner.
  fd_memory& operator=(fd_memory&& other) noexcept {
    use = std::move(other.use);
    owner = std::move(other.owner);
    has_slot = std::exchange(other.has_slot, false);
    return *this;
  }
  ~fd_memory() = default;

  std::shared_ptr<device_memories> owner;  // null: the operation takes another path
  device_memories::use use;
  bool has_slot = false;
};

}  // namespace pl::store_client
