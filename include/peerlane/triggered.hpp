// SPDX-License-Identifier: Apache-2.0
// C++ interface of stream-triggered communication: RAII and spans over the C calls of <peerlane/triggered.h>, which
// describes each call, the threading rules, memory order and EAGAIN. Link libpeerlane.
//
//   auto context = peerlane::triggered::context::open();                       // result<context>; as mpirun says
//   auto mine = context->expose(peerlane::device_buffer(device_ptr, size_bytes));
//   auto theirs = context->import((*context->all_gather(mine->key()))[peer]);  // result<remote_window>
//   auto channel = context->connect(peer, 1);                                  // result<channel>
//   channel->put_signal(stream, *theirs, 0, peerlane::device_buffer(source, size_bytes));
//   channel->wait_signal(stream);
//
// Streams are CUstream or cudaStream_t. Failures are values; value_or_throw() of <peerlane/communicator.hpp> throws them
// instead. A context must outlive the objects that were made from it.
#pragma once

#include <peerlane/stream_collectives.h>
#include <peerlane/triggered.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <peerlane/communicator.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace peerlane::triggered {

using window_key = peerlane_triggered_key;

namespace detail {
template <int (*End)(peerlane_triggered_t, std::uint64_t)>
using owned_object = peerlane::detail::owned_number<peerlane_triggered_t, End>;
}  // namespace detail

// Memory of this process into which peers may put, until this object is destroyed.
class window : public detail::owned_object<peerlane_triggered_release_window> {
 public:
  window() = default;
  window(peerlane_triggered_t owner, peerlane_exposed_t number, const window_key& key) noexcept
      : owned_number(owner, number), key_(key) {}
  const window_key& key() const noexcept { return key_; }

 private:
  window_key key_{};
};

// An imported window of a peer.
using remote_window = detail::owned_object<peerlane_triggered_release_remote>;

// A batch of stream memory operations. Destroying it discards operations that were not passed to the driver.
class batch : public detail::owned_object<peerlane_batch_release> {
 public:
  using owned_number::owned_number;
  status add(std::span<const peerlane_word_op> operations) {
    return peerlane::detail::to_status(peerlane_batch_add(owner_, number_, operations.data(), operations.size()));
  }
  status write64(std::uint64_t word, std::uint64_t value) { return add_one({PEERLANE_WORD_WRITE64, 0, word, value}); }
  status write32(std::uint64_t word, std::uint32_t value) { return add_one({PEERLANE_WORD_WRITE32, 0, word, value}); }
  status wait64(std::uint64_t word, std::uint64_t value, peerlane_condition condition = PEERLANE_AT_LEAST) {
    return add_one({PEERLANE_WORD_WAIT64, static_cast<std::uint32_t>(condition), word, value});
  }
  status wait32(std::uint64_t word, std::uint32_t value, peerlane_condition condition = PEERLANE_AT_LEAST) {
    return add_one({PEERLANE_WORD_WAIT32, static_cast<std::uint32_t>(condition), word, value});
  }
  status flush() { return add_one({PEERLANE_WORD_FLUSH, 0, 0, 0}); }
  // The batch is empty afterwards, whatever the result.
  status submit() { return peerlane::detail::to_status(peerlane_batch_submit(owner_, std::exchange(number_, 0))); }

 private:
  status add_one(const peerlane_word_op& operation) { return add({&operation, 1}); }
};

// This process's end of a channel. Destruction releases streams that still wait on it, here (ECANCELED) and at the peer
// (EPIPE, if they wait for an operation that was not put before).
class channel : public detail::owned_object<peerlane_channel_close> {
 public:
  using owned_number::owned_number;

  status ready(std::chrono::milliseconds limit = no_limit) const {
    return peerlane::detail::to_status(peerlane_channel_ready(owner_, number_, limit.count()));
  }

  // Do not change the source until the stream has passed the put.
  result<std::uint64_t> put_signal(void* stream, const remote_window& target, std::uint64_t offset_bytes,
                                   const_buffer source) const {
    return counted([&](std::uint64_t* out) {
      return peerlane_channel_put_signal(owner_, number_, stream, target.get(), offset_bytes, source, out);
    });
  }
  result<std::uint64_t> signal(void* stream) const {
    return counted([&](std::uint64_t* out) { return peerlane_channel_signal(owner_, number_, stream, out); });
  }
  // Waits for put or signal `sequence` of the peer; 0: the next one.
  result<std::uint64_t> wait_signal(void* stream, std::uint64_t sequence = 0) const {
    return counted([&](std::uint64_t* out) { return peerlane_channel_wait_signal(owner_, number_, stream, sequence, out); });
  }
  status release(void* stream, std::uint64_t sequence) const {
    return peerlane::detail::to_status(peerlane_channel_release(owner_, number_, stream, sequence));
  }

  result<bool> arrived(std::uint64_t sequence) const {
    int has_arrived = 0;
    if (const int code = peerlane_channel_arrived(owner_, number_, sequence, &has_arrived))
      return failure{code, peerlane_last_error()};
    return has_arrived != 0;
  }
  status host_wait(std::uint64_t sequence, std::chrono::milliseconds limit = no_limit) const {
    return peerlane::detail::to_status(peerlane_channel_host_wait(owner_, number_, sequence, limit.count()));
  }
  status cancel(int code = 0) const { return peerlane::detail::to_status(peerlane_channel_cancel(owner_, number_, code)); }
  result<peerlane_channel_state> state() const {
    peerlane_channel_state out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_channel_get_state(owner_, number_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<std::string> diag() const {
    return peerlane::detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_channel_diag(owner_, number_, text, capacity, needed);
    });
  }

 private:
  template <class Call>
  static result<std::uint64_t> counted(Call&& call) {
    std::uint64_t number = 0;
    if (const int code = call(&number)) return failure{code, peerlane_last_error()};
    return number;
  }
};

// Collectives that streams execute. close() is collective and frees their memory. If you only destroy the object, the memory
// is freed when the context closes. Everything queued must have ended before either.
class stream_collectives : public detail::owned_object<peerlane_stream_collectives_release> {
 public:
  using owned_number::owned_number;

  status all_reduce(void* stream, const_buffer source, buffer destination, peerlane_element type,
                    peerlane_reduction reduction) const {
    return peerlane::detail::to_status(
        peerlane_stream_all_reduce(owner_, number_, stream, source, destination, type, reduction));
  }
  status reduce_scatter(void* stream, const_buffer source, buffer destination, peerlane_element type,
                        peerlane_reduction reduction) const {
    return peerlane::detail::to_status(
        peerlane_stream_reduce_scatter(owner_, number_, stream, source, destination, type, reduction));
  }
  status all_gather(void* stream, const_buffer source, buffer destination) const {
    return peerlane::detail::to_status(peerlane_stream_all_gather(owner_, number_, stream, source, destination));
  }
  status all_to_all(void* stream, const_buffer source, buffer destination) const {
    return peerlane::detail::to_status(peerlane_stream_all_to_all(owner_, number_, stream, source, destination));
  }
  status barrier(void* stream) const {
    return peerlane::detail::to_status(peerlane_stream_barrier(owner_, number_, stream));
  }
  status state() const { return peerlane::detail::to_status(peerlane_stream_collectives_state(owner_, number_)); }
  status cancel(int code = 0) const {
    return peerlane::detail::to_status(peerlane_stream_collectives_cancel(owner_, number_, code));
  }
  status close() {
    return peerlane::detail::to_status(peerlane_stream_collectives_close(owner_, std::exchange(number_, 0)));
  }
};

// This process's membership in a job, with one GPU.
class context : public peerlane::detail::owned_handle<peerlane_triggered_t, peerlane_triggered_close> {
 public:
  using owned_handle::owned_handle;

  // Collective. For options other than the defaults, start from context::options().
  static result<context> open(const peerlane_triggered_options* options = nullptr) {
    peerlane_triggered_t out = nullptr;
    if (const int code = peerlane_triggered_open(options, &out)) return failure{code, peerlane_last_error()};
    return context(out);
  }
  static peerlane_triggered_options options() noexcept {
    peerlane_triggered_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  static peerlane_stream_collectives_options collectives_options() noexcept {
    peerlane_stream_collectives_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  static peerlane_channel_options channel_options() noexcept {
    peerlane_channel_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }

  status close() { return peerlane::detail::to_status(peerlane_triggered_close(give_up())); }
  int rank() const noexcept { return peerlane_triggered_rank(handle_); }
  int size() const noexcept { return peerlane_triggered_size(handle_); }
  result<peerlane_triggered_capabilities> query() const {
    peerlane_triggered_capabilities out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_triggered_query(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  status set_mode(peerlane_triggered_mode mode) const {
    return peerlane::detail::to_status(peerlane_triggered_set_mode(handle_, mode));
  }

  // Gathers `mine` from every rank, in rank order; to exchange window keys at startup.
  template <class T>
  result<std::vector<T>> all_gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>, "bytes are what is exchanged");
    std::vector<T> all(static_cast<std::size_t>(size() > 0 ? size() : 0));
    if (const int code = peerlane_triggered_all_gather(handle_, &mine, sizeof mine, all.data()))
      return failure{code, peerlane_last_error()};
    return all;
  }
  status barrier() const { return peerlane::detail::to_status(peerlane_triggered_all_gather(handle_, nullptr, 0, nullptr)); }

  result<window> expose(buffer device) const {
    peerlane_exposed_t number = 0;
    window_key key{};
    if (const int code = peerlane_triggered_expose(handle_, device, &number, &key))
      return failure{code, peerlane_last_error()};
    return window(handle_, number, key);
  }
  result<remote_window> import(const window_key& key) const {
    return made<remote_window>([&](std::uint64_t* out) { return peerlane_triggered_import(handle_, &key, out); });
  }
  result<channel> connect(int peer, std::uint32_t id, const peerlane_channel_options* options = nullptr) const {
    return made<channel>([&](std::uint64_t* out) { return peerlane_channel_connect(handle_, peer, id, options, out); });
  }
  result<batch> begin_batch(void* stream) const {
    return made<batch>([&](std::uint64_t* out) { return peerlane_batch_begin(handle_, stream, out); });
  }
  // Collective.
  result<stream_collectives> open_collectives(const peerlane_stream_collectives_options* options = nullptr) const {
    return made<stream_collectives>(
        [&](std::uint64_t* out) { return peerlane_stream_collectives_open(handle_, options, out); });
  }
  result<std::string> diag() const {
    return peerlane::detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_triggered_diag(handle_, text, capacity, needed);
    });
  }

 private:
  template <class Owner, class Begin>
  result<Owner> made(Begin&& begin) const {
    std::uint64_t number = 0;
    if (const int code = begin(&number)) return failure{code, peerlane_last_error()};
    return Owner(handle_, number);
  }
};

}  // namespace peerlane::triggered
