// SPDX-License-Identifier: Apache-2.0
// Connects and reconnects. After a reconnect, pending operations are requested again.
#include <unistd.h>

#include <algorithm>

#include "base/text.hpp"
#include "store/client/client.hpp"
#include "store/protocol/handshake.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;

constexpr unsigned kTakeBackMs = 1000;  // a store that does not answer keeps the memory until this process ends
constexpr auto kFirstBackoff = std::chrono::milliseconds(10), kLastBackoff = std::chrono::milliseconds(1000);

}  // namespace

// Precondition: no other thread drives the connection.
status client::connect_now(lock_t& hold, unsigned timeout_ms) {
  handshake_request request;
  request.last_session = last_session_;
  request.attach = options_.use_shm;
  request.rings = options_.use_shm && options_.use_rings;
  request.pools = pools_;
  request.ucx = offer_ucx();
  hold.unlock();
  std::string why_no_device;
  auto wire = connect(options_.server, timeout_ms);
  request.device = wire && wants_gpu_direct((*wire)->fd(), why_no_device);
  result<handshake_result> hello = failure{};
  if (wire) hello = do_handshake(**wire, request, timeout_ms);
  if (hello && hello->rings_fd >= 0) wire = over_rings(*std::move(wire), hello->rings_fd);
  for (const int fd : {hello ? hello->arena_fd : -1, hello ? hello->device_fd : -1})
    if (!wire && fd >= 0) close(fd);
  hold.lock();
  if (!wire) return wire.error();
  if (!hello) return hello.error();
  std::string reason = hello->why_no_shm;
  // Keeps the mapping if it is the same server's memory; another server's memory replaces it.
  if (arena_ != nullptr && hello->server.instance != server_.instance) arena_.reset();
  if (hello->arena_fd >= 0) {
    if (arena_ != nullptr) {
      close(hello->arena_fd);
    } else {
      auto mapped = arena_map::map(hello->arena_fd, *hello->memory, options_.copies);
      if (mapped) arena_ = *std::move(mapped);
      else reason = mapped.error().message;
    }
  } else {
    arena_.reset();
  }
  wire_ = *std::move(wire);
  server_ = hello->server;
  last_session_ = arena_ ? server_.session : 0;
  why_no_shm_ = reason;
  backoff_ = kFirstBackoff;
  join_ucx(hello->ucx, hello->ucx_refusal);
  join_device(*hello, std::move(why_no_device));
  // In the order of the original requests.
  std::vector<operation_ptr> again;
  for (const auto& [id, one] : asked_)
    if (!one->done()) again.push_back(one);
  asked_.clear();
  std::sort(again.begin(), again.end(),
            [](const auto& a, const auto& b) { return a->head.request_id < b->head.request_id; });
  for (const auto& one : again) submit(one);
  return {};
}

void client::lose_connection(const failure& reason) {
  if (!wire_) return;
  lost_because_ = reason;
  wire_.reset();
  out_.clear();
  current_.clear();
  streaming_.clear();
  forget_turns();
  receiving_.reset();
  data_next_ = false;
  input_begin_ = input_end_ = 0;
  unpin_.clear();  // the server dropped them
  unpin_bytes_ = 0;
  // Copies must end before the server is told that none is in progress (handshake.hpp).
  for (const auto& one : copies_) {
    wait_for_copies(*one);
    if (one->done() && one->unpin_later) --noticed_;
  }
  copies_.clear();
  for (const auto& [id, one] : asked_) leave_device(*one, false);
  device_.reset();
  leave_ucx();
  ++reconnects_;
  next_connect_ = clock::now();
  const auto asked = asked_;
  for (const auto& [id, one] : asked) {
    if (one->done()) {
      asked_.erase(id);
    } else if (!options_.reconnect || !one->may_repeat || closing_) {
      asked_.erase(id);
      finish(one, ECONNRESET, reason.message + "; whether it was done is not known");
    }
  }
}

// Whether the store would keep grants or pins of this connection, because this process could still use them. Pins that are
// not released yet are released here. Precondition: the lock is held, no thread drives the connection, and no copy is in
// progress.
bool client::leaves_memory_at_store() {
  if (last_session_ == 0) return false;
  if (!wire_ || !asked_.empty()) return true;
  if (unpin_.empty()) return false;
  operation note;  // no answer is awaited
  note.head.op = opcode::unpin;
  ask(note, opcode::unpin, {});
  return !flush() || !wire_;
}

// Tells the store, over another connection, that this process no longer uses what that session held. Otherwise the store
// would keep it until the process ends.
void client::take_back(std::uint64_t session) const {
  const auto wire = connect(options_.server, kTakeBackMs);
  if (!wire) return;
  handshake_request request;
  request.last_session = session;
  request.attach = false;
  (void)do_handshake(**wire, request, kTakeBackMs);
}

bool client::connect_again(lock_t& hold, clock::time_point deadline) {
  const auto now = clock::now();
  if (now < next_connect_) {
    hold.unlock();
    std::this_thread::sleep_until(std::min({next_connect_, deadline, now + kMaxSleep / 2}));
    hold.lock();
    expire();
    return false;
  }
  const auto end = std::min(deadline, next_deadline());
  const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(end - now).count();
  const auto done = connect_now(hold, static_cast<unsigned>(std::clamp<std::int64_t>(left_ms, 1, 2000)));
  if (done) return true;
  lost_because_ = done.error();
  next_connect_ = clock::now() + backoff_;
  backoff_ = std::min(backoff_ * 2, kLastBackoff);
  expire();
  return false;
}

}  // namespace pl::store_client
