// SPDX-License-Identifier: Apache-2.0
// Messages, put, get and atomics behind checked numbers. The contract is in peerlane/link.h.
#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "capi/open_link.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_link;
using pl::return_code;
using pl::with_link;
namespace messaging = pl::messaging;
using std::chrono::milliseconds;

constexpr const char* kNoRequest = "the request is not live: it has ended already, or is of another link";
constexpr const char* kNoMemoryKind = "memory is none of PEERLANE_MEMORY_DETECT, _HOST, _DEVICE";

bool is_kind(std::uint32_t memory) { return memory <= PEERLANE_MEMORY_DEVICE; }

messaging::buffer buffer_of(const void* data, std::size_t bytes, std::uint32_t memory) {
  return {reinterpret_cast<std::uint64_t>(data), bytes, static_cast<messaging::memory_kind>(memory)};
}

messaging::window::key_t key_of(const peerlane_window_key& given) { return {given.rank, given.id, given.bytes}; }

// A request with refused arguments gets no number: the call itself returns the error.
int keep(open_link& communicator, messaging::request&& made, peerlane_request_t* request) {
  if (made.is_refused()) return return_code(made.outcome());
  const auto number = communicator.requests.add(std::move(made));
  if (number == 0) return fail(EAGAIN, "4 million requests of this link have not been waited for: end some");
  *request = number;
  return 0;
}

void write_info(const messaging::message_info& ended, int error, peerlane_message_info* info) {
  if (info != nullptr) *info = {ended.source, error, ended.tag, ended.bytes};
}

// Returns an ended request's outcome and frees its number.
int end(open_link& communicator, peerlane_request_t& request, peerlane_message_info* info) {
  const messaging::request ended = communicator.requests.take(request);
  request = 0;
  const auto outcome = ended.outcome();
  write_info(ended.info(), outcome.code(), info);
  return return_code(outcome);
}

// The result of request 0.
int ended_well(peerlane_message_info* info) {
  write_info({}, 0, info);
  return 0;
}

// `act` gets the link and the live request.
template <class Act>
int with_request(peerlane_link_t handle, const peerlane_request_t* request, Act&& act) {
  return with_link(handle, [&](open_link& communicator) {
    messaging::request* const found = communicator.requests.find(*request);
    return found != nullptr ? act(communicator, *found) : fail(EINVAL, kNoRequest);
  });
}

// The rest of a limit that several waits share.
class time_limit {
 public:
  explicit time_limit(std::int64_t timeout_ms)
      : is_endless_(timeout_ms < 0),
        end_ns_(pl::monotonic_ns() + static_cast<std::uint64_t>(std::max<std::int64_t>(timeout_ms, 0)) * 1'000'000u) {}
  milliseconds left() const {
    if (is_endless_) return milliseconds(-1);
    const auto now = pl::monotonic_ns();
    return milliseconds(now >= end_ns_ ? 0 : static_cast<std::int64_t>((end_ns_ - now) / 1'000'000u));
  }

 private:
  bool is_endless_;
  std::uint64_t end_ns_;
};

}  // namespace

// ---- Messages

PL_EXPORT int peerlane_link_isend(peerlane_link_t link, int peer, const void* data, size_t bytes, uint32_t memory,
                                  uint64_t tag, peerlane_request_t* request) {
  if (request == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    return keep(communicator, communicator.messenger->isend(peer, buffer_of(data, bytes, memory), tag), request);
  });
}

PL_EXPORT int peerlane_link_irecv(peerlane_link_t link, int source, void* data, size_t bytes, uint32_t memory, uint64_t tag,
                                  uint64_t mask, peerlane_request_t* request) {
  if (request == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    return keep(communicator, communicator.messenger->irecv(source, buffer_of(data, bytes, memory), tag, mask), request);
  });
}

PL_EXPORT int peerlane_link_send(peerlane_link_t link, int peer, const void* data, size_t bytes, uint32_t memory,
                                 uint64_t tag, int64_t timeout_ms) {
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    return return_code(communicator.messenger->send(peer, buffer_of(data, bytes, memory), tag, milliseconds(timeout_ms)));
  });
}

PL_EXPORT int peerlane_link_recv(peerlane_link_t link, int source, void* data, size_t bytes, uint32_t memory, uint64_t tag,
                                 uint64_t mask, int64_t timeout_ms, struct peerlane_message_info* info) {
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    auto received = communicator.messenger->irecv(source, buffer_of(data, bytes, memory), tag, mask);
    const auto outcome = received.end_within(milliseconds(timeout_ms));
    if (outcome || outcome.code() == EMSGSIZE) write_info(received.info(), outcome.code(), info);
    return return_code(outcome);
  });
}

PL_EXPORT int peerlane_link_test(peerlane_link_t link, peerlane_request_t* request, int* done,
                                 struct peerlane_message_info* info) {
  if (request == nullptr || done == nullptr) return fail(EINVAL, kNullPointer);
  if (*request == 0) return *done = 1, ended_well(info);
  return with_request(link, request, [&](open_link& communicator, messaging::request& operation) {
    *done = operation.test() ? 1 : 0;
    return *done != 0 ? end(communicator, *request, info) : 0;
  });
}

PL_EXPORT int peerlane_link_wait(peerlane_link_t link, peerlane_request_t* request, int64_t timeout_ms,
                                 struct peerlane_message_info* info) {
  size_t index = 0;
  if (request == nullptr) return fail(EINVAL, kNullPointer);
  return peerlane_link_wait_any(link, request, 1, timeout_ms, &index, info);
}

PL_EXPORT int peerlane_link_wait_any(peerlane_link_t link, peerlane_request_t* requests, size_t count, int64_t timeout_ms,
                                     size_t* index, struct peerlane_message_info* info) {
  constexpr size_t kFew = 64;
  if (index == nullptr || (requests == nullptr && count != 0)) return fail(EINVAL, kNullPointer);
  return with_link(link, [&](open_link& communicator) {
    std::array<const messaging::request*, kFew> few;
    std::vector<const messaging::request*> many(count > kFew ? count : 0);
    const std::span<const messaging::request*> live(count > kFew ? many.data() : few.data(), count);
    bool is_any = false;
    for (size_t i = 0; i < count; ++i) {
      live[i] = requests[i] != 0 ? communicator.requests.find(requests[i]) : nullptr;
      if (requests[i] != 0 && live[i] == nullptr) return fail(EINVAL, kNoRequest);
      is_any = is_any || live[i] != nullptr;
    }
    if (!is_any) return *index = count, ended_well(info);
    const auto ended = communicator.messenger->wait_any(live, milliseconds(timeout_ms));
    if (!ended) return fail(ended.error());
    *index = *ended;
    return end(communicator, requests[*ended], info);
  });
}

PL_EXPORT int peerlane_link_wait_all(peerlane_link_t link, peerlane_request_t* requests, size_t count, int64_t timeout_ms,
                                     struct peerlane_message_info* infos) {
  if (requests == nullptr && count != 0) return fail(EINVAL, kNullPointer);
  return with_link(link, [&](open_link& communicator) {
    const time_limit limit(timeout_ms);
    pl::status first;
    for (size_t i = 0; i < count; ++i) {
      auto* const info = infos != nullptr ? infos + i : nullptr;
      if (requests[i] == 0) {
        ended_well(info);
        continue;
      }
      const messaging::request* const one = communicator.requests.find(requests[i]);
      if (one == nullptr) return fail(EINVAL, kNoRequest);
      if (auto ended = communicator.messenger->wait_any({&one, 1}, limit.left()); !ended) return fail(ended.error());
      const messaging::request done = communicator.requests.take(requests[i]);
      requests[i] = 0;
      const auto outcome = done.outcome();
      write_info(done.info(), outcome.code(), info);
      if (!outcome && first) first = outcome;
    }
    return return_code(first);
  });
}

PL_EXPORT int peerlane_link_cancel(peerlane_link_t link, peerlane_request_t request) {
  return with_request(link, &request,
                      [](open_link&, messaging::request& operation) { return return_code(operation.cancel()); });
}

PL_EXPORT int peerlane_link_free(peerlane_link_t link, peerlane_request_t* request) {
  if (request == nullptr) return fail(EINVAL, kNullPointer);
  if (*request == 0) return 0;
  return with_request(link, request, [&](open_link& communicator, messaging::request&) {
    static_cast<void>(communicator.requests.take(*request));
    *request = 0;
    return 0;
  });
}

// ---- Probing

PL_EXPORT int peerlane_link_probe(peerlane_link_t link, int source, uint64_t tag, uint64_t mask, int* found,
                                  struct peerlane_message_info* info) {
  if (found == nullptr) return fail(EINVAL, kNullPointer);
  return with_link(link, [&](open_link& communicator) {
    messaging::message_info seen;
    *found = communicator.messenger->probe(source, tag, mask, seen) ? 1 : 0;
    if (*found != 0) write_info(seen, 0, info);
    return 0;
  });
}

PL_EXPORT int peerlane_link_mprobe(peerlane_link_t link, int source, uint64_t tag, uint64_t mask,
                                   peerlane_message_t* message, struct peerlane_message_info* info) {
  if (message == nullptr) return fail(EINVAL, kNullPointer);
  return with_link(link, [&](open_link& communicator) {
    auto taken = communicator.messenger->match(source, tag, mask);
    const auto seen = taken.info();
    const bool is_none = taken.is_empty();
    *message = is_none ? 0 : communicator.matched.add(std::move(taken));
    if (!is_none) write_info(seen, 0, info);
    return 0;
  });
}

PL_EXPORT int peerlane_link_receive_matched(peerlane_link_t link, peerlane_message_t* message, void* data, size_t bytes,
                                            uint32_t memory, peerlane_request_t* request) {
  if (message == nullptr || request == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    auto taken = communicator.matched.take(*message);
    if (taken.is_empty()) return fail(EINVAL, "the message is not live: mprobe found none, or it has been received");
    *message = 0;
    return keep(communicator, communicator.messenger->receive(std::move(taken), buffer_of(data, bytes, memory)), request);
  });
}

PL_EXPORT int peerlane_link_discard(peerlane_link_t link, peerlane_message_t* message) {
  if (message == nullptr) return fail(EINVAL, kNullPointer);
  return with_link(link, [&](open_link& communicator) {
    if (communicator.matched.take(*message).is_empty())
      return fail(EINVAL, "the message is not live: mprobe found none, or it has been received");
    *message = 0;
    return 0;
  });
}

// ---- Put, get, atomics

PL_EXPORT int peerlane_link_expose(peerlane_link_t link, void* data, size_t bytes, uint32_t memory,
                                   peerlane_window_t* window, struct peerlane_window_key* key) {
  if (window == nullptr || key == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    auto made = communicator.messenger->expose(buffer_of(data, bytes, memory));
    if (!made) return fail(made.error());
    *key = {made->key().rank, made->key().id, made->key().bytes};
    *window = communicator.windows.add(*std::move(made));
    return 0;
  });
}

PL_EXPORT int peerlane_link_unexpose(peerlane_link_t link, peerlane_window_t window) {
  return with_link(link, [&](open_link& communicator) {
    messaging::window* const found = communicator.windows.find(window);
    if (found == nullptr) return fail(EINVAL, "the window is not live: it has ended already");
    if (auto done = found->close(); !done) return fail(done.error());
    static_cast<void>(communicator.windows.take(window));
    return 0;
  });
}

PL_EXPORT int peerlane_link_put(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset,
                                const void* data, size_t bytes, uint32_t memory, peerlane_request_t* request) {
  if (key == nullptr || request == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    return keep(communicator, communicator.messenger->put(key_of(*key), offset, buffer_of(data, bytes, memory)), request);
  });
}

PL_EXPORT int peerlane_link_get(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset, void* data,
                                size_t bytes, uint32_t memory, peerlane_request_t* request) {
  if (key == nullptr || request == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    return keep(communicator, communicator.messenger->get(key_of(*key), offset, buffer_of(data, bytes, memory)), request);
  });
}

PL_EXPORT int peerlane_link_flush(peerlane_link_t link, int peer, int64_t timeout_ms) {
  return with_link(link, [&](open_link& communicator) {
    return return_code(communicator.messenger->flush(peer, milliseconds(timeout_ms)));
  });
}

PL_EXPORT int peerlane_link_atomic(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset,
                                   uint32_t operation, uint64_t operand, uint64_t compare, uint64_t* before,
                                   peerlane_request_t* request) {
  if (key == nullptr || request == nullptr) return fail(EINVAL, kNullPointer);
  if (operation > PEERLANE_ATOMIC_COMPARE_SWAP) return fail(EINVAL, "the operation is none of PEERLANE_ATOMIC_*");
  return with_link(link, [&](open_link& communicator) {
    return keep(communicator,
                communicator.messenger->atomic(key_of(*key), offset, static_cast<messaging::atomic_op>(operation), operand,
                                               compare, before),
                request);
  });
}

// ---- Registered memory

PL_EXPORT int peerlane_link_register(peerlane_link_t link, const void* data, size_t bytes, uint32_t memory,
                                     peerlane_registered_t* registered) {
  if (registered == nullptr) return fail(EINVAL, kNullPointer);
  if (!is_kind(memory)) return fail(EINVAL, kNoMemoryKind);
  return with_link(link, [&](open_link& communicator) {
    auto kept = communicator.messenger->register_memory(buffer_of(data, bytes, memory));
    if (!kept) return fail(kept.error());
    *registered = communicator.registrations.add(*std::move(kept));
    return 0;
  });
}

PL_EXPORT int peerlane_link_unregister(peerlane_link_t link, peerlane_registered_t registered) {
  return with_link(link, [&](open_link& communicator) {
    if (communicator.registrations.find(registered) == nullptr)
      return fail(EINVAL, "the registration is not live: it has ended already");
    static_cast<void>(communicator.registrations.take(registered));
    return 0;
  });
}
