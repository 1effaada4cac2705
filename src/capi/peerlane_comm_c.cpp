// SPDX-License-Identifier: Apache-2.0
// Messages, put, get and atomics behind checked numbers. The contract is in peerlane/communicator.h.
#include <algorithm>

#include "capi/comm_operations.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_comm;
using pl::return_code;
using pl::with_comm;
namespace messaging = pl::messaging;
using std::chrono::milliseconds;

constexpr const char* kNoMemoryKind = "a buffer's memory is not one of PEERLANE_MEMORY_ANY, _HOST, _DEVICE";
constexpr const char* kNoMessage = "the message is not live: mprobe found none, or it has been received";

messaging::buffer buffer_from(const peerlane_buffer& given) {
  return {given.address, given.size_bytes, static_cast<messaging::memory_kind>(given.memory)};
}

messaging::window::key_t key_of(const peerlane_window_key& given) { return {given.rank, given.id, given.size_bytes}; }

// Calls `act(open_comm&, messaging::buffer)` if the buffer is valid.
template <class Act>
int with_buffer(peerlane_comm_t comm, const peerlane_buffer& given, Act&& act) {
  if (given.memory > PEERLANE_MEMORY_DEVICE) return fail(EINVAL, kNoMemoryKind);
  return with_comm(comm, [&](open_comm& communicator) { return act(communicator, buffer_from(given)); });
}

// For a call that makes progress: `act`, then the functions of what has ended meanwhile.
template <class Act>
int with_progress(peerlane_comm_t comm, Act&& act) {
  return with_comm(comm, [&](open_comm& communicator) {
    const int code = act(communicator);
    pl::call_end_functions(communicator);
    return code;
  });
}

void write_info(const messaging::message_info& seen, peerlane_op_info* info) {
  if (info != nullptr) *info = pl::message_op_info(seen, 0);
}

}  // namespace

// ---- Messages

PL_EXPORT int peerlane_comm_isend(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag,
                                  peerlane_op_t* op) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, source, [&](open_comm& communicator, const messaging::buffer& data) {
    return pl::keep(comm, communicator, communicator.messenger->isend(peer, data, tag), data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_irecv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag,
                                  uint64_t mask, peerlane_op_t* op) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, destination, [&](open_comm& communicator, const messaging::buffer& data) {
    return pl::keep(comm, communicator, communicator.messenger->irecv(source, data, tag, mask), data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_await_failure(peerlane_comm_t comm, peerlane_op_t* op) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    return pl::keep(comm, communicator, communicator.messenger->await_failure(), 0, op);
  });
}

PL_EXPORT int peerlane_comm_await_return(peerlane_comm_t comm, peerlane_op_t* op) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    return pl::keep(comm, communicator, communicator.messenger->await_return(), 0, op);
  });
}

PL_EXPORT int peerlane_comm_incarnation(peerlane_comm_t comm, int peer, uint32_t* incarnation) {
  if (incarnation == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    if (peer < 0 || peer >= communicator.messenger->size()) return fail(EINVAL, "no such rank");
    *incarnation = communicator.messenger->incarnation(peer);
    return 0;
  });
}

PL_EXPORT int peerlane_comm_send(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag,
                                 int64_t timeout_ms) {
  return with_buffer(comm, source, [&](open_comm& communicator, const messaging::buffer& data) {
    const int code = return_code(communicator.messenger->send(peer, data, tag, milliseconds(timeout_ms)));
    pl::call_end_functions(communicator);
    return code;
  });
}

PL_EXPORT int peerlane_comm_recv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag,
                                 uint64_t mask, int64_t timeout_ms, struct peerlane_op_info* info) {
  return with_buffer(comm, destination, [&](open_comm& communicator, const messaging::buffer& data) {
    auto received = communicator.messenger->irecv(source, data, tag, mask);
    const auto outcome = received.end_within(milliseconds(timeout_ms));
    if ((outcome || outcome.code() == EMSGSIZE) && info != nullptr)
      *info = pl::message_op_info(received.info(), outcome.code(), data.bytes);
    pl::call_end_functions(communicator);
    return return_code(outcome);
  });
}

// ---- Probing

PL_EXPORT int peerlane_comm_probe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask, int* found,
                                  struct peerlane_op_info* info) {
  if (found == nullptr) return fail(EINVAL, kNullPointer);
  return with_progress(comm, [&](open_comm& communicator) {
    messaging::message_info seen;
    *found = communicator.messenger->probe(source, tag, mask, seen) ? 1 : 0;
    if (*found != 0) write_info(seen, info);
    return 0;
  });
}

PL_EXPORT int peerlane_comm_mprobe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask,
                                   peerlane_message_t* message, struct peerlane_op_info* info) {
  if (message == nullptr) return fail(EINVAL, kNullPointer);
  return with_progress(comm, [&](open_comm& communicator) {
    auto taken = communicator.messenger->match(source, tag, mask);
    const auto seen = taken.info();
    const bool is_none = taken.is_empty();
    *message = is_none ? 0 : communicator.matched.add(std::move(taken));
    if (!is_none) write_info(seen, info);
    return 0;
  });
}

PL_EXPORT int peerlane_comm_irecv_matched(peerlane_comm_t comm, peerlane_message_t* message,
                                          struct peerlane_buffer destination, peerlane_op_t* op) {
  if (message == nullptr || op == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, destination, [&](open_comm& communicator, const messaging::buffer& data) {
    auto taken = communicator.matched.take(*message);
    if (taken.is_empty()) return fail(EINVAL, kNoMessage);
    *message = 0;
    return pl::keep(comm, communicator, communicator.messenger->receive(std::move(taken), data), data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_release_message(peerlane_comm_t comm, peerlane_message_t* message) {
  if (message == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    if (communicator.matched.take(*message).is_empty()) return fail(EINVAL, kNoMessage);
    *message = 0;
    return 0;
  });
}

// ---- Put, get, atomics

PL_EXPORT int peerlane_comm_expose(peerlane_comm_t comm, struct peerlane_buffer buffer, peerlane_window_t* window,
                                   struct peerlane_window_key* key) {
  if (window == nullptr || key == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, buffer, [&](open_comm& communicator, const messaging::buffer& range) {
    auto made = communicator.messenger->expose(range);
    if (!made) return fail(made.error());
    *key = {made->key().rank, made->key().id, made->key().bytes};
    *window = communicator.windows.add(*std::move(made));
    return 0;
  });
}

PL_EXPORT int peerlane_comm_allocate(peerlane_comm_t comm, size_t size_bytes, peerlane_window_t* window, void** memory,
                                     struct peerlane_window_key* key) {
  if (window == nullptr || memory == nullptr || key == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    auto made = communicator.messenger->allocate(size_bytes);
    if (!made) return fail(made.error());
    *key = {made->key().rank, made->key().id, made->key().bytes};
    *memory = made->data();
    *window = communicator.windows.add(*std::move(made));
    return 0;
  });
}

PL_EXPORT int peerlane_comm_release_window(peerlane_comm_t comm, peerlane_window_t window) {
  return with_comm(comm, [&](open_comm& communicator) {
    messaging::window* const found = communicator.windows.find(window);
    if (found == nullptr) return fail(EINVAL, "the window is not live: it has ended already");
    if (auto done = found->close(); !done) return fail(done.error());
    static_cast<void>(communicator.windows.take(window));
    return 0;
  });
}

PL_EXPORT int peerlane_comm_put(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                                struct peerlane_buffer source, peerlane_op_t* op) {
  if (key == nullptr || op == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, source, [&](open_comm& communicator, const messaging::buffer& data) {
    return pl::keep(comm, communicator, communicator.messenger->put(key_of(*key), offset_bytes, data), data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_put_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                                       struct peerlane_buffer source, const struct peerlane_signal* signal,
                                       peerlane_op_t* op) {
  if (key == nullptr || signal == nullptr || op == nullptr) return fail(EINVAL, kNullPointer);
  if (signal->kind > PEERLANE_SIGNAL_ADD) return fail(EINVAL, "the signal's kind is not one of PEERLANE_SIGNAL_*");
  if (signal->reserved != 0) return fail(EINVAL, "the signal's reserved word is not 0");
  const messaging::signal_word word{
      key_of(signal->key), signal->offset_bytes, signal->value,
      signal->kind == PEERLANE_SIGNAL_SET ? messaging::signal_kind::set : messaging::signal_kind::add};
  return with_buffer(comm, source, [&](open_comm& communicator, const messaging::buffer& data) {
    return pl::keep(comm, communicator, communicator.messenger->put_signal(key_of(*key), offset_bytes, data, word),
                    data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_wait_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                                        uint64_t least, int64_t timeout_ms, uint64_t* value) {
  if (key == nullptr) return fail(EINVAL, kNullPointer);
  return with_progress(comm, [&](open_comm& communicator) {
    auto seen = communicator.messenger->wait_signal(key_of(*key), offset_bytes, least, milliseconds(timeout_ms));
    if (!seen) return fail(seen.error());
    if (value != nullptr) *value = *seen;
    return 0;
  });
}

PL_EXPORT int peerlane_comm_get(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                                struct peerlane_buffer destination, peerlane_op_t* op) {
  if (key == nullptr || op == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, destination, [&](open_comm& communicator, const messaging::buffer& data) {
    return pl::keep(comm, communicator, communicator.messenger->get(key_of(*key), offset_bytes, data), data.bytes, op);
  });
}

PL_EXPORT int peerlane_comm_flush(peerlane_comm_t comm, int peer, int64_t timeout_ms) {
  return with_progress(comm, [&](open_comm& communicator) {
    return return_code(communicator.messenger->flush(peer, milliseconds(timeout_ms)));
  });
}

PL_EXPORT int peerlane_comm_atomic(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                                   uint32_t atomic, uint64_t operand, uint64_t compare, uint64_t* before,
                                   peerlane_op_t* op) {
  if (key == nullptr || op == nullptr) return fail(EINVAL, kNullPointer);
  if (atomic > PEERLANE_ATOMIC_COMPARE_SWAP) return fail(EINVAL, "atomic is not one of PEERLANE_ATOMIC_*");
  return with_comm(comm, [&](open_comm& communicator) {
    return pl::keep(comm, communicator,
                    communicator.messenger->atomic(key_of(*key), offset_bytes, static_cast<messaging::atomic_op>(atomic),
                                                   operand, compare, before),
                    sizeof(uint64_t), op);
  });
}

// ---- Registered memory

PL_EXPORT int peerlane_comm_register(peerlane_comm_t comm, struct peerlane_buffer buffer,
                                     peerlane_registered_t* registered) {
  if (registered == nullptr) return fail(EINVAL, kNullPointer);
  return with_buffer(comm, buffer, [&](open_comm& communicator, const messaging::buffer& range) {
    auto kept = communicator.messenger->register_memory(range);
    if (!kept) return fail(kept.error());
    *registered = communicator.registrations.add(*std::move(kept));
    return 0;
  });
}

PL_EXPORT int peerlane_comm_release_registered(peerlane_comm_t comm, peerlane_registered_t registered) {
  return with_comm(comm, [&](open_comm& communicator) {
    if (communicator.registrations.find(registered) == nullptr)
      return fail(EINVAL, "the registration is not live: it has ended already");
    static_cast<void>(communicator.registrations.take(registered));
    return 0;
  });
}
