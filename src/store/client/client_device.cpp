// SPDX-License-Identifier: Apache-2.0
// Values in GPU memory that the store moves itself: no byte passes through this process.
//
//   first use of an allocation   handed over by descriptor (device_link.hpp)
//   put, get                     one request, one answer; the store's DMA channel works in between
//   batches                      the same for many values of one allocation (client_batch.cpp)
//
// If the store cannot do this (it answers ENOTSUP), the operation takes its usual path.
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.hpp"
#include "store/client/client.hpp"

namespace pl::store_client {
namespace {

namespace flag = store_protocol::flag;
using kind = operation::kind;

bool is_trusted(int socket) {
  ucred server{};
  socklen_t length = sizeof server;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &server, &length) != 0) return false;
  return server.uid == 0 || server.uid == geteuid();
}

}  // namespace

bool client::wants_gpu_direct(int socket, std::string& why_not) const {
  const std::string asked = env_read("PEERLANE_STORE_GPU_DIRECT").text;
  const bool is_off = options_.gpu_direct ? !*options_.gpu_direct : asked == "off";
  if (options_.copies == nullptr || options_.cuda == nullptr) why_not = "the client was opened without a GPU";
  else if (is_off) why_not = "PEERLANE_STORE_GPU_DIRECT=off";
  else if (options_.server.socket.empty()) why_not = "the store was not reached by its unix socket";
  else if (!options_.gpu_direct && asked != "on" && !is_trusted(socket))
    why_not = "the store runs as another user, who would reach whole allocations (PEERLANE_STORE_GPU_DIRECT=on allows it)";
  return why_not.empty();
}

// Precondition: the lock is held.
void client::join_device(handshake_result& hello, std::string why_not) {
  device_.reset();
  why_no_device_ = !why_not.empty() ? std::move(why_not) : hello.why_no_device;
  if (hello.device_fd < 0) {
    if (why_no_device_.empty()) why_no_device_ = "the store is of an earlier release";
    return;
  }
  auto link = device_link::open(std::exchange(hello.device_fd, -1), options_.timeout_ms);
  if (link) device_ = std::make_shared<device_memories>(*options_.cuda, *std::move(link));
  else why_no_device_ = link.error().message;
}

// Precondition: the lock is not held, because the first use of an allocation asks the store.
fd_memory client::hand_over(const memory& buffer, std::uint64_t least_bytes, const stream_order& order) {
  fd_memory out;
  const bool is_required = options_.require == store_protocol::path::gpu_direct;
  const bool is_free = options_.require == store_protocol::path::none;
  const std::uint64_t least = is_required ? 1 : least_bytes;
  if (!buffer.device || order.has || buffer.bytes < least || (!is_free && !is_required)) return out;
  std::shared_ptr<device_memories> now;
  {
    const lock_t hold(lock_);
    now = device_;
  }
  if (now == nullptr) return out;
  auto found = now->find(*buffer.device, buffer.address, buffer.bytes);
  if (!found) {
    const lock_t hold(lock_);
    if (device_ == now) why_no_device_ = found.error().message;
    return out;
  }
  out.owner = std::move(now);
  out.use = *std::move(found);
  return out;
}

// Returns false if the operation takes another path, or has failed.
bool client::submit_by_device(const operation_ptr& one) {
  std::optional<store_protocol::device_part> part;
  if (one->handed.owner != nullptr && one->handed.owner == device_) part = device_->link()->take_slot();
  if (!part) {
    asked_.erase(one->head.request_id);
    device_refused(one);
    return false;
  }
  part->memory = one->handed.use.memory;
  part->offset = one->handed.use.offset;
  one->fields.device = part;
  one->handed.has_slot = true;
  one->head.flags |= flag::device;
  pace_.begins(*one, options_.spin_us);
  return true;
}

// Switches the operation to the path that it would have taken without this.
void client::device_refused(const operation_ptr& one) {
  const bool is_put = one->method == kind::put_device;
  leave_device(*one, true);
  one->handed = {};
  if (one->method == kind::batch_device)  // its items go one by one
    return finish(one, ENOTSUP, "the store does not move this memory any more");
  const bool may_map = !is_put || (arena_ != nullptr && !arena_->read_only());
  if (arena_ != nullptr && may_map) {
    one->method = is_put ? kind::put_shm : kind::get_shm;
    return submit(one);
  }
  one->method = is_put ? kind::put_shm : kind::get_shm;  // the operations that go_by_socket handles
  go_by_socket(one, why_no_shm_);
}

// Ends the store's use of the operation's memory. Returns false if the store may still touch it (device_link::settle).
bool client::leave_device(operation& one, bool is_answered) {
  if (!std::exchange(one.handed.has_slot, false)) return true;
  const auto part = *std::exchange(one.fields.device, std::nullopt);
  one.head.flags = static_cast<std::uint16_t>(one.head.flags & ~flag::device);
  const auto& link = one.handed.owner->link();
  if (!is_answered && !link->settle(part)) return false;
  link->give_slot(part);
  one.handed.use = {};
  return true;
}

}  // namespace pl::store_client
