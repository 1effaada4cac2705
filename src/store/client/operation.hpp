// SPDX-License-Identifier: Apache-2.0
// One operation of a client: the request, its progress, and its result.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "copy/completion.hpp"
#include "cuda/pointer.hpp"
#include "store/client/checksum_pool.hpp"
#include "store/client/device_link.hpp"
#include "store/client/ucx_value_stream.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

using clock = std::chrono::steady_clock;

// The fields of an answer's tail. Most of them only repeat what `reply` has, and a tail takes 400 bytes: calls with
// thousands of values allocated and cleared megabytes.
class answer_fields {
 public:
  answer_fields& operator=(store_protocol::tail said) {
    tail_ = std::make_shared<const store_protocol::tail>(std::move(said));
    return *this;
  }
  const store_protocol::tail* operator->() const noexcept { return tail_ ? tail_.get() : &nothing(); }

 private:
  static const store_protocol::tail& nothing() noexcept {
    static const store_protocol::tail kNothing;
    return kNothing;
  }
  std::shared_ptr<const store_protocol::tail> tail_;
};

// A store's answer.
struct reply {
  int status = 0;                  // errno value
  std::string text;                // the reason, if status is not 0
  store_protocol::outcome result;  // version, path taken, durability reached, ...
  std::uint64_t moved_bytes = 0;   // of the value, between the store and the caller's memory
  std::uint32_t pool_id = 0;
  bool more = false;  // find: there are more keys
  answer_fields fields;
  std::string body;  // lists, metrics
};

// The caller's memory. Host and device addresses are both plain numbers.
struct memory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::optional<cu::pointer_info> device;  // set for device memory
};

// A CUDA stream with which a copy is ordered.
struct stream_order {
  bool has = false;
  cu::stream_t stream = nullptr;
};

// When a long transfer by the store is expected to end. Its caller sleeps until shortly before that, then polls for a
// while, because a caller that is woken by the answer has it 65 us late in a virtual machine.
struct device_wait {
  clock::time_point asked_at;
  clock::time_point sleep_until, poll_until;  // not set: nothing is known
};

class operation {
 public:
  enum class kind {
    plain,
    put_streamed,
    get_streamed,
    put_shm,
    get_shm,
    put_ucx,
    get_ucx,
    put_device,
    get_device,
    batch_device
  };
  enum class stage {
    asked,    // a frame has been, or will be, sent to the server
    to_copy,  // shm: the extents are known
    copying,  // shm: the GPU or other threads are copying
    done,
  };

  // ---- the request; constant once submitted
  kind method = kind::plain;
  store_protocol::head head;
  std::string key;
  store_protocol::tail fields;
  std::string body;    // plain: sent with the head; for a short put from device memory, its value
  memory mine;         // put: source, get: destination
  stream_order order;  // shm
  clock::time_point deadline = clock::time_point::max();
  bool may_repeat = true;                    // after a lost connection
  bool is_interrupted = false;               // its deadline was brought forward (interruption.hpp)
  bool leave_to_stream = false;              // get: the operation is done once the stream waits for the copy
  std::function<void(operation&)> callback;  // called once, without locks, by the thread that completes the operation
  int event_fd = -1;                         // written once; the caller owns it

  // ---- progress; guarded by the client's lock
  stage phase = stage::asked;
  std::uint64_t sent_bytes = 0;      // put_streamed
  std::uint64_t received_bytes = 0;  // get_streamed
  std::uint64_t token = 0;           // grant or pin
  stream_transfer_ptr ucx_transfer;  // put_ucx, get_ucx: set once its bytes may move
  bool ucx_answered = false;         // get_ucx: the number of bytes is known; put_ucx: the commit has been requested
  std::uint64_t ucx_bytes = 0;       // get_ucx: the number of bytes
  fd_memory handed;                  // ..._device: until the operation ends
  device_wait expected;              // ..._device
  std::vector<store_protocol::extent> extents;
  copy::completion copies;  // get
  // Put, or host memory: copied one by one and summed; removed once they are in `sum`
  std::deque<std::shared_ptr<value_part>> parts;
  copy::gpu_checksum::job gpu_sum;   // put: replaces the parts, unless it is given up
  clock::time_point gpu_sum_until;   // deadline for giving it up; set once the copies have ended
  bool reports_arrival = false;      // put: the store writes what has arrived to its disk
  std::uint64_t arrived_bytes = 0;   // put, in parts: arrived and summed, from the value's start
  std::uint64_t reported_bytes = 0;  // the part of it that the store knows of
  std::optional<std::uint32_t> sum;  // of what was copied between the arena and host memory, or into it
  std::vector<std::byte> staging;    // one frame of device memory over a socket, or the rest of one after the end
  int attempts = 0;
  bool has_turn = false;     // put_shm, put_ucx: counts as one that occupies the store's memory (client_turns.cpp)
  bool goes_alone = false;   // put_streamed: the store had no room for it beside this client's other puts
  bool unpin_later = false;  // leave_to_stream: the copy has not ended yet

  // ---- the result; valid once done
  reply got;
  bool done() const noexcept { return phase == stage::done; }
  bool goes_by_device() const noexcept {
    return method == kind::put_device || method == kind::get_device || method == kind::batch_device;
  }
  bool is_patch() const noexcept { return (head.flags & store_protocol::flag::patch) != 0; }
};
using operation_ptr = std::shared_ptr<operation>;

}  // namespace pl::store_client
