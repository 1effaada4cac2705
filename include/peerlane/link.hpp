// SPDX-License-Identifier: Apache-2.0
// C++ API of the messages: RAII and spans over the C calls of <peerlane/link.h>, where each call, the threads' rule and
// memory order are described; link libpeerlane.
//
//   auto job = peerlane::messenger::open();                                        // result<messenger>; as mpirun says
//   auto received = job->irecv(peerlane::any_source, peerlane::device_memory(gpu_ptr, bytes), tag);
//   auto sent = job->isend(peer, std::span(values), tag);
//   received->wait();                                                         // result<message_info>
//
// Failures are values; the *_or_throw forms throw peerlane::link_error instead.
#pragma once

#include <peerlane/link.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <peerlane/copy.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace peerlane {

inline constexpr int any_source = PEERLANE_ANY_SOURCE;
inline constexpr std::uint64_t whole_tag = PEERLANE_WHOLE_TAG;
inline constexpr std::chrono::milliseconds no_limit{-1};

// What *_or_throw throws: a failure that can be thrown.
class link_error : public std::exception {
 public:
  explicit link_error(failure reason, const peerlane_message_info& info = {})
      : reason_(std::make_shared<const failure>(std::move(reason))), info_(info) {}
  int code() const noexcept { return reason_->code; }
  const char* what() const noexcept override { return reason_->message.c_str(); }
  // Of EMSGSIZE: the message's source, tag and true length, which is more than the buffer holds.
  const peerlane_message_info& info() const noexcept { return info_; }

 private:
  std::shared_ptr<const failure> reason_;  // copies of exceptions must not throw
  peerlane_message_info info_;
};

template <class T>
T value_or_throw(result<T> outcome, const peerlane_message_info& info = {}) {
  if (!outcome) throw link_error(std::move(outcome).error(), info);
  return *std::move(outcome);
}
inline void value_or_throw(const status& outcome) {
  if (!outcome) throw link_error(outcome.error());
}

// Bytes of a message: host memory as a span of plain values, device memory by pointer and length. Views: the memory must
// live until the request ends.
class const_memory {
 public:
  template <class T, std::size_t N>
  const_memory(std::span<T, N> host) noexcept  // NOLINT(google-explicit-constructor)
      : const_memory(host.data(), host.size_bytes(), PEERLANE_MEMORY_HOST) {
    static_assert(std::is_trivially_copyable_v<T>, "a message carries bytes");
  }
  const_memory(const void* data, std::size_t bytes, peerlane_memory kind) noexcept
      : data_(data), bytes_(bytes), kind_(kind) {}
  const void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  peerlane_memory kind() const noexcept { return kind_; }

 private:
  const void* data_;
  std::size_t bytes_;
  peerlane_memory kind_;
};

class memory : public const_memory {
 public:
  template <class T, std::size_t N>
  memory(std::span<T, N> host) noexcept : const_memory(host) {  // NOLINT(google-explicit-constructor)
    static_assert(!std::is_const_v<T>, "what is received is written");
  }
  memory(void* data, std::size_t bytes, peerlane_memory kind) noexcept : const_memory(data, bytes, kind) {}
  void* data() const noexcept { return const_cast<void*>(const_memory::data()); }
};

inline memory device_memory(std::uint64_t device_ptr, std::size_t bytes) noexcept {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(device_ptr)), bytes, PEERLANE_MEMORY_DEVICE};
}
inline memory device_memory(void* device_ptr, std::size_t bytes) noexcept {
  return {device_ptr, bytes, PEERLANE_MEMORY_DEVICE};
}
// The driver is asked at each call what lies there.
inline memory any_memory(void* data, std::size_t bytes) noexcept { return {data, bytes, PEERLANE_MEMORY_DETECT}; }

using message_info = peerlane_message_info;
using window_key = peerlane_window_key;

// An operation under way. Dropping one that has not ended is peerlane_link_free: its memory is free afterwards. Must be gone
// before its link is closed. An empty one has ended well.
class request {
 public:
  request() = default;
  request(peerlane_link_t handle, peerlane_request_t number) noexcept : link_(handle), number_(number) {}
  request(request&& other) noexcept : link_(other.link_), number_(std::exchange(other.number_, 0)) {}
  request& operator=(request&& other) noexcept {
    if (this != &other) {
      reset();
      link_ = other.link_;
      number_ = std::exchange(other.number_, 0);
    }
    return *this;
  }
  ~request() { reset(); }

  bool is_empty() const noexcept { return number_ == 0; }
  peerlane_request_t get() const noexcept { return number_; }
  peerlane_request_t release() noexcept { return std::exchange(number_, 0); }

  // true: ended; then the request is empty, and `info`, if given, says how it ended (info->error, too).
  result<bool> test(message_info* info = nullptr) {
    int done = 0;
    if (number_ == 0) return true;
    if (const int code = peerlane_link_test(link_, &number_, &done, info)) return failure{code, peerlane_last_error()};
    return done != 0;
  }
  // ETIMEDOUT with the request not empty: it goes on. EMSGSIZE: truncated. `info`, if given, says how it ended whatever the
  // answer: of a truncated message info->bytes is the true length.
  result<message_info> wait(std::chrono::milliseconds limit = no_limit, message_info* info = nullptr) {
    message_info own{};
    message_info& received_info = info != nullptr ? *info : own;
    if (number_ == 0) return received_info = message_info{};
    if (const int code = peerlane_link_wait(link_, &number_, limit.count(), &received_info))
      return failure{code, peerlane_last_error()};
    return received_info;
  }
  message_info wait_or_throw(std::chrono::milliseconds limit = no_limit) {
    message_info info{};
    auto outcome = wait(limit, &info);
    return value_or_throw(std::move(outcome), info);
  }
  status cancel() { return detail::to_status(peerlane_link_cancel(link_, number_)); }
  void reset() noexcept {
    if (number_ != 0) peerlane_link_free(link_, &number_);
    number_ = 0;  // also where the link had been closed
  }

 private:
  peerlane_link_t link_ = nullptr;
  peerlane_request_t number_ = 0;
};

namespace detail {
// Owner of a number of a link (or another `Handle`) that `End` ends.
template <class Handle, int (*End)(Handle, std::uint64_t)>
class owned_number {
 public:
  owned_number() = default;
  owned_number(Handle owner, std::uint64_t number) noexcept : owner_(owner), number_(number) {}
  owned_number(owned_number&& other) noexcept : owner_(other.owner_), number_(std::exchange(other.number_, 0)) {}
  owned_number& operator=(owned_number&& other) noexcept {
    if (this != &other) {
      reset();
      owner_ = other.owner_;
      number_ = std::exchange(other.number_, 0);
    }
    return *this;
  }
  ~owned_number() { reset(); }
  std::uint64_t get() const noexcept { return number_; }
  void reset() noexcept {
    if (number_ != 0) End(owner_, std::exchange(number_, 0));
  }

 protected:
  Handle owner_ = nullptr;
  std::uint64_t number_ = 0;
};

inline int discard_message(peerlane_link_t handle, std::uint64_t number) { return peerlane_link_discard(handle, &number); }
}  // namespace detail

// Memory that other processes may put to and get from, until this is closed or dropped. Drop it where close() has failed
// only if the memory stays.
class window : public detail::owned_number<peerlane_link_t, peerlane_link_unexpose> {
 public:
  window() = default;
  window(peerlane_link_t handle, peerlane_window_t number, const window_key& key) noexcept
      : owned_number(handle, number), key_(key) {}
  const window_key& key() const noexcept { return key_; }
  // As peerlane_link_unexpose. ETIMEDOUT: a peer may still read the memory; call it again.
  status close() noexcept {
    if (number_ == 0) return {};
    const int code = peerlane_link_unexpose(owner_, number_);
    if (code == 0) number_ = 0;
    return detail::to_status(code);
  }

 private:
  window_key key_{};
};

// A message that matched_probe has taken out of the matching. Dropping it discards the message.
class matched_message : public detail::owned_number<peerlane_link_t, detail::discard_message> {
 public:
  matched_message() = default;
  matched_message(peerlane_link_t handle, peerlane_message_t number, const message_info& info) noexcept
      : owned_number(handle, number), info_(info) {}
  bool is_empty() const noexcept { return number_ == 0; }
  const message_info& info() const noexcept { return info_; }

 private:
  friend class messenger;
  message_info info_{};
};

// Memory whose messages do not ask the driver.
using registered_memory = detail::owned_number<peerlane_link_t, peerlane_link_unregister>;

// The caller's own exchange, as an object: all_gather(mine, all) like MPI_Allgather, 0 or an errno value. Must outlive its
// link.
class callback_bootstrap {
 public:
  using all_gather_t = std::function<int(std::span<const std::byte> mine, std::byte* all)>;
  callback_bootstrap(int rank, int size, all_gather_t all_gather) : all_gather_(std::move(all_gather)) {
    calls_.context = this;
    calls_.rank = rank;
    calls_.size = size;
    calls_.all_gather = [](void* context, const void* mine, std::size_t bytes, void* all) {
      return static_cast<callback_bootstrap*>(context)->all_gather_({static_cast<const std::byte*>(mine), bytes},
                                                                    static_cast<std::byte*>(all));
    };
  }
  callback_bootstrap(const callback_bootstrap&) = delete;
  callback_bootstrap& operator=(const callback_bootstrap&) = delete;
  const peerlane_bootstrap* get() const noexcept { return &calls_; }

 private:
  all_gather_t all_gather_;
  peerlane_bootstrap calls_{};
};

// A process's place in a job. (Not "link": that is a function of POSIX.) Any thread; must outlive its requests, windows,
// messages and registrations.
class messenger : public detail::owned_handle<peerlane_link_t, peerlane_link_close> {
 public:
  using owned_handle::get;  // the C handle; a window's bytes below
  using owned_handle::owned_handle;

  // Collective. Options to start from: messenger::options().
  static result<messenger> open(const peerlane_link_options* options = nullptr) {
    peerlane_link_t out = nullptr;
    if (const int code = peerlane_link_open(options, &out)) return failure{code, peerlane_last_error()};
    return messenger(out);
  }
  static messenger open_or_throw(const peerlane_link_options* options = nullptr) { return value_or_throw(open(options)); }
  static peerlane_link_options options() noexcept {
    peerlane_link_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }

  int rank() const noexcept { return peerlane_link_rank(handle_); }
  int size() const noexcept { return peerlane_link_size(handle_); }
  status peer_state(int peer) const { return detail::to_status(peerlane_link_peer_state(handle_, peer)); }
  result<bool> is_same_node(int peer) const {
    int same = 0;
    if (const int code = peerlane_link_is_same_node(handle_, peer, &same)) return failure{code, peerlane_last_error()};
    return same != 0;
  }

  result<request> isend(int peer, const_memory data, std::uint64_t tag) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_isend(handle_, peer, data.data(), data.bytes(), data.kind(), tag, out);
    });
  }
  result<request> irecv(int source, memory destination, std::uint64_t tag, std::uint64_t mask = whole_tag) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_irecv(handle_, source, destination.data(), destination.bytes(), destination.kind(), tag, mask,
                                 out);
    });
  }
  status send(int peer, const_memory data, std::uint64_t tag, std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_link_send(handle_, peer, data.data(), data.bytes(), data.kind(), tag, limit.count()));
  }
  // `info`, if given, is written for EMSGSIZE too: info->bytes is the message's true length.
  result<message_info> recv(int source, memory destination, std::uint64_t tag, std::uint64_t mask = whole_tag,
                            std::chrono::milliseconds limit = no_limit, message_info* info = nullptr) const {
    message_info own{};
    message_info& received_info = info != nullptr ? *info : own;
    if (const int code = peerlane_link_recv(handle_, source, destination.data(), destination.bytes(), destination.kind(),
                                            tag, mask, limit.count(), &received_info))
      return failure{code, peerlane_last_error()};
    return received_info;
  }
  void send_or_throw(int peer, const_memory data, std::uint64_t tag, std::chrono::milliseconds limit = no_limit) const {
    value_or_throw(send(peer, data, tag, limit));
  }
  message_info recv_or_throw(int source, memory destination, std::uint64_t tag, std::uint64_t mask = whole_tag,
                             std::chrono::milliseconds limit = no_limit) const {
    message_info info{};
    auto outcome = recv(source, destination, tag, mask, limit, &info);
    return value_or_throw(std::move(outcome), info);
  }

  // The index of a request that has ended, which is empty then; requests.size() if all were empty. The error is its own, or
  // ETIMEDOUT with nothing ended.
  result<std::size_t> wait_any(std::span<request> requests, std::chrono::milliseconds limit = no_limit,
                               message_info* info = nullptr) const {
    std::size_t index = 0;
    const int code = with_numbers(requests, [&](peerlane_request_t* numbers) {
      return peerlane_link_wait_any(handle_, numbers, requests.size(), limit.count(), &index, info);
    });
    if (code != 0) return failure{code, peerlane_last_error()};
    return index;
  }
  // The first error that one ended with; `infos` is empty or as long as `requests`.
  status wait_all(std::span<request> requests, std::chrono::milliseconds limit = no_limit,
                  std::span<message_info> infos = {}) const {
    if (!infos.empty() && infos.size() != requests.size())
      return failure{EINVAL, "wait_all: infos and requests differ in number"};
    return detail::to_status(with_numbers(requests, [&](peerlane_request_t* numbers) {
      return peerlane_link_wait_all(handle_, numbers, requests.size(), limit.count(),
                                    infos.empty() ? nullptr : infos.data());
    }));
  }

  result<bool> probe(int source, std::uint64_t tag, std::uint64_t mask, message_info& info) const {
    int found = 0;
    if (const int code = peerlane_link_probe(handle_, source, tag, mask, &found, &info))
      return failure{code, peerlane_last_error()};
    return found != 0;
  }
  // Empty if no message is here.
  result<matched_message> matched_probe(int source, std::uint64_t tag, std::uint64_t mask = whole_tag) const {
    peerlane_message_t number = 0;
    message_info info{};
    if (const int code = peerlane_link_mprobe(handle_, source, tag, mask, &number, &info))
      return failure{code, peerlane_last_error()};
    return matched_message(handle_, number, info);
  }
  result<request> receive(matched_message&& message, memory destination) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_receive_matched(handle_, &message.number_, destination.data(), destination.bytes(),
                                           destination.kind(), out);
    });
  }

  result<window> expose(memory range) const {
    peerlane_window_t number = 0;
    window_key key{};
    if (const int code = peerlane_link_expose(handle_, range.data(), range.bytes(), range.kind(), &number, &key))
      return failure{code, peerlane_last_error()};
    return window(handle_, number, key);
  }
  result<request> put(const window_key& key, std::uint64_t offset, const_memory data) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_put(handle_, &key, offset, data.data(), data.bytes(), data.kind(), out);
    });
  }
  result<request> get(const window_key& key, std::uint64_t offset, memory destination) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_get(handle_, &key, offset, destination.data(), destination.bytes(), destination.kind(), out);
    });
  }
  result<request> atomic(const window_key& key, std::uint64_t offset, peerlane_atomic operation, std::uint64_t operand,
                         std::uint64_t compare = 0, std::uint64_t* before = nullptr) const {
    return begun([&](peerlane_request_t* out) {
      return peerlane_link_atomic(handle_, &key, offset, operation, operand, compare, before, out);
    });
  }
  // The old value; waits for the answer.
  result<std::uint64_t> fetch_add(const window_key& key, std::uint64_t offset, std::uint64_t operand) const {
    return fetch(key, offset, PEERLANE_ATOMIC_ADD, operand, 0);
  }
  result<std::uint64_t> swap(const window_key& key, std::uint64_t offset, std::uint64_t operand) const {
    return fetch(key, offset, PEERLANE_ATOMIC_SWAP, operand, 0);
  }
  result<std::uint64_t> compare_swap(const window_key& key, std::uint64_t offset, std::uint64_t compare,
                                     std::uint64_t operand) const {
    return fetch(key, offset, PEERLANE_ATOMIC_COMPARE_SWAP, operand, compare);
  }
  status flush(int peer, std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_link_flush(handle_, peer, limit.count()));
  }

  result<registered_memory> register_memory(const_memory data) const {
    peerlane_registered_t number = 0;
    if (const int code = peerlane_link_register(handle_, data.data(), data.bytes(), data.kind(), &number))
      return failure{code, peerlane_last_error()};
    return registered_memory(handle_, number);
  }

  result<bool> progress() const {
    int moved = 0;
    if (const int code = peerlane_link_progress(handle_, &moved)) return failure{code, peerlane_last_error()};
    return moved != 0;
  }
  status barrier(std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_link_barrier(handle_, limit.count()));
  }
  // `mine` of every rank, by rank: for setting up.
  template <class T>
  result<std::vector<T>> all_gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>, "bytes are what is exchanged");
    std::vector<T> all(static_cast<std::size_t>(size() > 0 ? size() : 0));
    if (const int code = peerlane_link_all_gather(handle_, &mine, sizeof mine, all.data()))
      return failure{code, peerlane_last_error()};
    return all;
  }
  result<peerlane_link_statistics> statistics() const {
    peerlane_link_statistics out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_link_get_statistics(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<std::string> plan(int peer) const {
    std::string text(8192, '\0');
    std::size_t needed = 0;
    if (const int code = peerlane_link_plan(handle_, peer, text.data(), text.size(), &needed))
      return failure{code, peerlane_last_error()};
    text.resize(needed < text.size() ? needed : text.size() - 1);
    return text;
  }

 private:
  template <class Begin>
  result<request> begun(Begin&& begin) const {
    peerlane_request_t number = 0;
    if (const int code = begin(&number)) return failure{code, peerlane_last_error()};
    return request(handle_, number);
  }
  // Passes the numbers of `requests` as an array to a C call, which ends some of them.
  template <class Call>
  int with_numbers(std::span<request> requests, Call&& call) const {
    std::array<peerlane_request_t, 64> few{};
    std::vector<peerlane_request_t> many(requests.size() > few.size() ? requests.size() : 0);
    peerlane_request_t* const numbers = many.empty() ? few.data() : many.data();
    for (std::size_t i = 0; i < requests.size(); ++i) numbers[i] = requests[i].release();
    const int code = call(numbers);
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (numbers[i] != 0) requests[i] = request(handle_, numbers[i]);
    return code;
  }
  result<std::uint64_t> fetch(const window_key& key, std::uint64_t offset, peerlane_atomic operation, std::uint64_t operand,
                              std::uint64_t compare) const {
    std::uint64_t before = 0;
    auto asked = atomic(key, offset, operation, operand, compare, &before);
    if (!asked) return std::move(asked).error();
    if (auto done = asked->wait(); !done) return std::move(done).error();
    return before;
  }
};

}  // namespace peerlane
