// SPDX-License-Identifier: Apache-2.0
// C++ API of stream-triggered communication: RAII and spans over the C calls of <peerlane/stream.h>, which describes each
// call, the threading rules, memory order and EAGAIN; link libpeerlane.
//
//   auto job = peerlane::stream_context::open();                                  // result<stream_context>; as mpirun says
//   auto mine = job->expose(device_ptr, bytes);                                   // result<stream_window>
//   auto theirs = job->import((*job->all_gather(mine->key()))[peer]);             // result<remote_window>
//   auto channel = job->connect(peer, 1);                                         // result<stream_channel>
//   channel->put_signal(stream, *theirs, 0, std::span(device_values, count));
//   channel->wait_signal(stream);
//
// Streams are CUstream or cudaStream_t. Failures are values; value_or_throw() of <peerlane/link.hpp> throws them instead. A
// context must outlive the objects that were made from it.
#pragma once

#include <peerlane/stream.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <peerlane/link.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace peerlane {

using stream_key = peerlane_stream_key;

namespace detail {
template <int (*End)(peerlane_stream_t, std::uint64_t)>
using stream_number = owned_number<peerlane_stream_t, End>;

// The full text from `give(text, capacity, needed)`; the text may grow from one call to the next.
template <class Give>
result<std::string> whole_text(Give&& give) {
  std::string text(4096, '\0');
  for (;;) {
    std::size_t needed = 0;
    if (const int code = give(text.data(), text.size(), &needed)) return failure{code, peerlane_last_error()};
    const bool is_whole = needed < text.size();
    text.resize(is_whole ? needed : needed + 1024);
    if (is_whole) return text;
  }
}
}  // namespace detail

// Own memory that peers may put into, until this is dropped.
class stream_window : public detail::stream_number<peerlane_stream_withdraw> {
 public:
  stream_window() = default;
  stream_window(peerlane_stream_t context, peerlane_exposed_t number, const stream_key& key) noexcept
      : owned_number(context, number), key_(key) {}
  const stream_key& key() const noexcept { return key_; }

 private:
  stream_key key_{};
};

// A peer's window.
using remote_window = detail::stream_number<peerlane_stream_drop>;

// Words on a stream, gathered and submitted. Destruction discards operations that were not passed to the driver.
class stream_batch : public detail::stream_number<peerlane_batch_drop> {
 public:
  using owned_number::owned_number;
  status add(std::span<const peerlane_op> operations) {
    return detail::to_status(peerlane_batch_add(owner_, number_, operations.data(), operations.size()));
  }
  status write64(std::uint64_t word, std::uint64_t value) { return add_one({PEERLANE_OP_WRITE64, 0, word, value}); }
  status write32(std::uint64_t word, std::uint32_t value) { return add_one({PEERLANE_OP_WRITE32, 0, word, value}); }
  status wait64(std::uint64_t word, std::uint64_t value, peerlane_condition condition = PEERLANE_AT_LEAST) {
    return add_one({PEERLANE_OP_WAIT64, static_cast<std::uint32_t>(condition), word, value});
  }
  status wait32(std::uint64_t word, std::uint32_t value, peerlane_condition condition = PEERLANE_AT_LEAST) {
    return add_one({PEERLANE_OP_WAIT32, static_cast<std::uint32_t>(condition), word, value});
  }
  status flush() { return add_one({PEERLANE_OP_FLUSH, 0, 0, 0}); }
  // The batch is empty afterwards, whatever the result.
  status submit() { return detail::to_status(peerlane_batch_submit(owner_, std::exchange(number_, 0))); }

 private:
  status add_one(const peerlane_op& operation) { return add({&operation, 1}); }
};

// This process's end of a channel. Destruction releases streams that still wait on it, here (ECANCELED) and at the peer
// (EPIPE, if they wait for an operation that was not put before).
class stream_channel : public detail::stream_number<peerlane_channel_close> {
 public:
  using owned_number::owned_number;

  status ready(std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_channel_ready(owner_, number_, limit.count()));
  }

  // `source` names device memory and is not dereferenced; do not change the values until the stream has passed the put.
  template <class T, std::size_t N>
  result<std::uint64_t> put_signal(void* stream, const remote_window& window, std::uint64_t offset,
                                   std::span<T, N> source) const {
    static_assert(std::is_trivially_copyable_v<T>, "a put carries bytes");
    return put_signal(stream, window, offset, reinterpret_cast<std::uintptr_t>(source.data()), source.size_bytes());
  }
  result<std::uint64_t> put_signal(void* stream, const remote_window& window, std::uint64_t offset, std::uint64_t source,
                                   std::size_t bytes) const {
    return counted([&](std::uint64_t* out) {
      return peerlane_channel_put_signal(owner_, number_, stream, window.get(), offset, source, bytes, out);
    });
  }
  result<std::uint64_t> signal(void* stream) const {
    return counted([&](std::uint64_t* out) { return peerlane_channel_signal(owner_, number_, stream, out); });
  }
  // 0: for the next one.
  result<std::uint64_t> wait_signal(void* stream, std::uint64_t sequence = 0) const {
    return counted([&](std::uint64_t* out) { return peerlane_channel_wait_signal(owner_, number_, stream, sequence, out); });
  }
  status release(void* stream, std::uint64_t sequence) const {
    return detail::to_status(peerlane_channel_release(owner_, number_, stream, sequence));
  }

  result<bool> arrived(std::uint64_t sequence) const {
    int has_arrived = 0;
    if (const int code = peerlane_channel_arrived(owner_, number_, sequence, &has_arrived))
      return failure{code, peerlane_last_error()};
    return has_arrived != 0;
  }
  status host_wait(std::uint64_t sequence, std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_channel_host_wait(owner_, number_, sequence, limit.count()));
  }
  status cancel(int code = 0) const { return detail::to_status(peerlane_channel_cancel(owner_, number_, code)); }
  result<peerlane_channel_state> state() const {
    peerlane_channel_state out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_channel_get_state(owner_, number_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<std::string> diag() const {
    return detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
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

// One process's part, for one GPU.
class stream_context : public detail::owned_handle<peerlane_stream_t, peerlane_stream_close> {
 public:
  using owned_handle::owned_handle;

  // Collective. Options to start from: stream_context::options().
  static result<stream_context> open(const peerlane_stream_options* options = nullptr) {
    peerlane_stream_t out = nullptr;
    if (const int code = peerlane_stream_open(options, &out)) return failure{code, peerlane_last_error()};
    return stream_context(out);
  }
  static peerlane_stream_options options() noexcept {
    peerlane_stream_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  static peerlane_channel_options channel_options() noexcept {
    peerlane_channel_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }

  int rank() const noexcept { return peerlane_stream_rank(handle_); }
  int size() const noexcept { return peerlane_stream_size(handle_); }
  result<peerlane_stream_capabilities> query() const {
    peerlane_stream_capabilities out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_stream_query(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  status set_mode(peerlane_stream_mode mode) const { return detail::to_status(peerlane_stream_set_mode(handle_, mode)); }

  // `mine` of every rank, by rank: for setting up.
  template <class T>
  result<std::vector<T>> all_gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>, "bytes are what is exchanged");
    std::vector<T> all(static_cast<std::size_t>(size() > 0 ? size() : 0));
    if (const int code = peerlane_stream_all_gather(handle_, &mine, sizeof mine, all.data()))
      return failure{code, peerlane_last_error()};
    return all;
  }
  status barrier() const { return detail::to_status(peerlane_stream_all_gather(handle_, nullptr, 0, nullptr)); }

  result<stream_window> expose(std::uint64_t device_ptr, std::size_t bytes) const {
    peerlane_exposed_t number = 0;
    stream_key key{};
    if (const int code = peerlane_stream_expose(handle_, device_ptr, bytes, &number, &key))
      return failure{code, peerlane_last_error()};
    return stream_window(handle_, number, key);
  }
  template <class T, std::size_t N>
  result<stream_window> expose(std::span<T, N> device) const {
    static_assert(!std::is_const_v<T>, "a window is written");
    return expose(reinterpret_cast<std::uintptr_t>(device.data()), device.size_bytes());
  }
  result<remote_window> import(const stream_key& key) const {
    return made<remote_window>([&](std::uint64_t* out) { return peerlane_stream_import(handle_, &key, out); });
  }
  result<stream_channel> connect(int peer, std::uint32_t id, const peerlane_channel_options* options = nullptr) const {
    return made<stream_channel>(
        [&](std::uint64_t* out) { return peerlane_channel_connect(handle_, peer, id, options, out); });
  }
  result<stream_batch> batch(void* stream) const {
    return made<stream_batch>([&](std::uint64_t* out) { return peerlane_batch_begin(handle_, stream, out); });
  }
  result<std::string> diag() const {
    return detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_stream_diag(handle_, text, capacity, needed);
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

}  // namespace peerlane
