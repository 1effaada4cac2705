// SPDX-License-Identifier: Apache-2.0
// C++ interface of messages: RAII objects over the C calls of <peerlane/communicator.h>, which describes each call, the
// rules for threads and the memory order. Link libpeerlane.
//
//   auto comm = peerlane::communicator::open();                                    // result<communicator>; as mpirun says
//   auto received = comm->irecv(peerlane::any_source, peerlane::device_buffer(device_ptr, size_bytes), tag);
//   auto sent = comm->isend(peer, values, tag);                                    // a span or container of host memory
//   received->wait();                                                              // result<op_info>
//
// Failures are values; the *_or_throw forms throw peerlane::error instead.
#pragma once

#include <peerlane/collectives.h>
#include <peerlane/communicator.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <peerlane/buffer.hpp>
#include <peerlane/copy.hpp>
#include <peerlane/operation.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace peerlane {

inline constexpr int any_source = PEERLANE_ANY_SOURCE;
inline constexpr std::uint64_t whole_tag = PEERLANE_WHOLE_TAG;

using window_key = peerlane_window_key;

namespace detail {
// Owns a number of a communicator (or another `Handle`); `End` ends it.
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

inline int release_message(peerlane_comm_t handle, std::uint64_t number) {
  return peerlane_comm_release_message(handle, &number);
}
}  // namespace detail

// Memory that other processes may put to and get from, until this object is released or destroyed. If release() has failed,
// destroy it only if the memory stays allocated.
class window : public detail::owned_number<peerlane_comm_t, peerlane_comm_release_window> {
 public:
  window() = default;
  window(peerlane_comm_t handle, peerlane_window_t number, const window_key& key, void* data = nullptr) noexcept
      : owned_number(handle, number), key_(key), data_(data) {}
  const window_key& key() const noexcept { return key_; }
  // The memory of a window made by allocate(), valid until the window ends; null for other windows.
  void* data() const noexcept { return data_; }
  // As peerlane_comm_release_window. ETIMEDOUT: a peer may still access the memory; call again.
  status release() noexcept {
    if (number_ == 0) return {};
    const int code = peerlane_comm_release_window(owner_, number_);
    if (code == 0) number_ = 0, data_ = nullptr;
    return detail::to_status(code);
  }

 private:
  window_key key_{};
  void* data_ = nullptr;
};

// A message that matched_probe has removed from matching. Destroying this object discards the message.
class matched_message : public detail::owned_number<peerlane_comm_t, detail::release_message> {
 public:
  matched_message() = default;
  matched_message(peerlane_comm_t handle, peerlane_message_t number, const op_info& info) noexcept
      : owned_number(handle, number), info_(info) {}
  bool is_empty() const noexcept { return number_ == 0; }
  const op_info& info() const noexcept { return info_; }

 private:
  friend class communicator;
  op_info info_{};
};

// Registered memory: messages from and to it do not have to ask the driver.
using registered_memory = detail::owned_number<peerlane_comm_t, peerlane_comm_release_registered>;

// The caller's own bootstrap: all_gather(mine, all) works as MPI_Allgather and returns 0 or an errno value. The object must
// outlive its communicator.
class callback_bootstrap {
 public:
  using all_gather_t = std::function<int(std::span<const std::byte> mine, std::byte* all)>;
  callback_bootstrap(int rank, int size, all_gather_t all_gather) : all_gather_(std::move(all_gather)) {
    calls_.context = this;
    calls_.rank = rank;
    calls_.size = size;
    calls_.all_gather = [](void* context, const void* mine, std::size_t size_bytes, void* all) {
      return static_cast<callback_bootstrap*>(context)->all_gather_({static_cast<const std::byte*>(mine), size_bytes},
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

// This process's membership in a job. Any thread may use it. It must outlive its operations, windows, messages and
// registrations.
class communicator : public detail::owned_handle<peerlane_comm_t, peerlane_comm_close> {
 public:
  using owned_handle::get;  // the C handle; a window's bytes below
  using owned_handle::owned_handle;

  // Collective. For options other than the defaults, start from communicator::options().
  static result<communicator> open(const peerlane_comm_options* options = nullptr) {
    peerlane_comm_t out = nullptr;
    if (const int code = peerlane_comm_open(options, &out)) return failure{code, peerlane_last_error()};
    return communicator(out);
  }
  static communicator open_or_throw(const peerlane_comm_options* options = nullptr) { return value_or_throw(open(options)); }
  static peerlane_comm_options options() noexcept {
    peerlane_comm_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }

  // EDEADLK: a function of then() cannot close it, and it stays open.
  status close() {
    const int code = peerlane_comm_close(handle_);
    if (code != EDEADLK) handle_ = nullptr;
    return detail::to_status(code);
  }
  int rank() const noexcept { return peerlane_comm_rank(handle_); }
  int size() const noexcept { return peerlane_comm_size(handle_); }
  status peer_state(int peer) const { return detail::to_status(peerlane_comm_peer_state(handle_, peer)); }
  // Ends when a process of the job has gone: its info has the rank in `source`, and a peerlane_failure in `tag`.
  result<operation> await_failure() const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_await_failure(handle_, out); });
  }
  // For elastic jobs. Ends when a rank has come back: its info has the rank in `source`, and its incarnation in `tag`.
  result<operation> await_return() const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_await_return(handle_, out); });
  }
  // Number of the rank's process, from 1; 0: this process has known none.
  result<std::uint32_t> incarnation(int peer) const {
    std::uint32_t out = 0;
    if (const int code = peerlane_comm_incarnation(handle_, peer, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<bool> is_same_node(int peer) const {
    int same = 0;
    if (const int code = peerlane_comm_is_same_node(handle_, peer, &same)) return failure{code, peerlane_last_error()};
    return same != 0;
  }

  result<operation> isend(int peer, const_buffer data, std::uint64_t tag) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_isend(handle_, peer, data, tag, out); });
  }
  result<operation> irecv(int source, buffer destination, std::uint64_t tag, std::uint64_t mask = whole_tag) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_irecv(handle_, source, destination, tag, mask, out); });
  }
  status send(int peer, const_buffer data, std::uint64_t tag, std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_comm_send(handle_, peer, data, tag, limit.count()));
  }
  // `info`, if passed, is also written for EMSGSIZE: info->size_bytes is then the full length of the message.
  result<op_info> recv(int source, buffer destination, std::uint64_t tag, std::uint64_t mask = whole_tag,
                       std::chrono::milliseconds limit = no_limit, op_info* info = nullptr) const {
    op_info own{};
    op_info& received_info = info != nullptr ? *info : own;
    if (const int code = peerlane_comm_recv(handle_, source, destination, tag, mask, limit.count(), &received_info))
      return failure{code, peerlane_last_error()};
    return received_info;
  }
  void send_or_throw(int peer, const_buffer data, std::uint64_t tag, std::chrono::milliseconds limit = no_limit) const {
    value_or_throw(send(peer, data, tag, limit));
  }
  op_info recv_or_throw(int source, buffer destination, std::uint64_t tag, std::uint64_t mask = whole_tag,
                        std::chrono::milliseconds limit = no_limit) const {
    op_info info{};
    auto outcome = recv(source, destination, tag, mask, limit, &info);
    return value_or_throw(std::move(outcome), info);
  }

  result<bool> probe(int source, std::uint64_t tag, std::uint64_t mask, op_info& info) const {
    int found = 0;
    if (const int code = peerlane_comm_probe(handle_, source, tag, mask, &found, &info))
      return failure{code, peerlane_last_error()};
    return found != 0;
  }
  // Empty if there is no such message.
  result<matched_message> matched_probe(int source, std::uint64_t tag, std::uint64_t mask = whole_tag) const {
    peerlane_message_t number = 0;
    op_info info{};
    if (const int code = peerlane_comm_mprobe(handle_, source, tag, mask, &number, &info))
      return failure{code, peerlane_last_error()};
    return matched_message(handle_, number, info);
  }
  result<operation> irecv(matched_message&& message, buffer destination) const {
    return begun(
        [&](peerlane_op_t* out) { return peerlane_comm_irecv_matched(handle_, &message.number_, destination, out); });
  }

  result<window> expose(buffer range) const {
    peerlane_window_t number = 0;
    window_key key{};
    if (const int code = peerlane_comm_expose(handle_, range, &number, &key)) return failure{code, peerlane_last_error()};
    return window(handle_, number, key);
  }
  // Zeroed host memory that peers on the node can access without this process.
  result<window> allocate(std::size_t size_bytes) const {
    peerlane_window_t number = 0;
    window_key key{};
    void* data = nullptr;
    if (const int code = peerlane_comm_allocate(handle_, size_bytes, &number, &data, &key))
      return failure{code, peerlane_last_error()};
    return window(handle_, number, key, data);
  }
  result<operation> put(const window_key& key, std::uint64_t offset_bytes, const_buffer data) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_put(handle_, &key, offset_bytes, data, out); });
  }
  // Changes a word in a window of the same process when the bytes have arrived.
  result<operation> put_signal(const window_key& key, std::uint64_t offset_bytes, const_buffer data,
                               const peerlane_signal& signal) const {
    return begun(
        [&](peerlane_op_t* out) { return peerlane_comm_put_signal(handle_, &key, offset_bytes, data, &signal, out); });
  }
  // Waits until a word in a window of this process is at least `least`, and returns its value.
  result<std::uint64_t> wait_signal(const window_key& own, std::uint64_t offset_bytes, std::uint64_t least,
                                    std::chrono::milliseconds limit = no_limit) const {
    std::uint64_t value = 0;
    if (const int code = peerlane_comm_wait_signal(handle_, &own, offset_bytes, least, limit.count(), &value))
      return failure{code, peerlane_last_error()};
    return value;
  }
  result<operation> get(const window_key& key, std::uint64_t offset_bytes, buffer destination) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_get(handle_, &key, offset_bytes, destination, out); });
  }
  result<operation> atomic(const window_key& key, std::uint64_t offset_bytes, peerlane_atomic kind, std::uint64_t operand,
                           std::uint64_t compare = 0, std::uint64_t* before = nullptr) const {
    return begun([&](peerlane_op_t* out) {
      return peerlane_comm_atomic(handle_, &key, offset_bytes, kind, operand, compare, before, out);
    });
  }
  // Returns the old value; waits for it.
  result<std::uint64_t> fetch_add(const window_key& key, std::uint64_t offset_bytes, std::uint64_t operand) const {
    return fetch(key, offset_bytes, PEERLANE_ATOMIC_ADD, operand, 0);
  }
  result<std::uint64_t> swap(const window_key& key, std::uint64_t offset_bytes, std::uint64_t operand) const {
    return fetch(key, offset_bytes, PEERLANE_ATOMIC_SWAP, operand, 0);
  }
  result<std::uint64_t> compare_swap(const window_key& key, std::uint64_t offset_bytes, std::uint64_t compare,
                                     std::uint64_t operand) const {
    return fetch(key, offset_bytes, PEERLANE_ATOMIC_COMPARE_SWAP, operand, compare);
  }
  status flush(int peer, std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_comm_flush(handle_, peer, limit.count()));
  }

  result<registered_memory> register_memory(const_buffer data) const {
    peerlane_registered_t number = 0;
    if (const int code = peerlane_comm_register(handle_, data, &number)) return failure{code, peerlane_last_error()};
    return registered_memory(handle_, number);
  }

  result<bool> progress() const {
    int moved = 0;
    if (const int code = peerlane_comm_progress(handle_, &moved)) return failure{code, peerlane_last_error()};
    return moved != 0;
  }
  // For poll, epoll or an event loop: becomes readable at the next event after arm() has succeeded. Call arm() before each
  // sleep; EBUSY: test your operations, and call it again.
  result<int> event_descriptor() const {
    int descriptor = -1;
    if (const int code = peerlane_comm_event_descriptor(handle_, &descriptor)) return failure{code, peerlane_last_error()};
    return descriptor;
  }
  status arm() const { return detail::to_status(peerlane_comm_arm(handle_)); }
  status barrier(std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_comm_barrier(handle_, limit.count()));
  }
  // Gathers `mine` from every rank, in rank order; to exchange window keys at startup.
  template <class T>
  result<std::vector<T>> all_gather(const T& mine) const {
    static_assert(std::is_trivially_copyable_v<T>, "bytes are what is exchanged");
    std::vector<T> all(static_cast<std::size_t>(size() > 0 ? size() : 0));
    if (const int code = peerlane_comm_all_gather(handle_, &mine, sizeof mine, all.data()))
      return failure{code, peerlane_last_error()};
    return all;
  }

  // ---- Collectives, as in <peerlane/collectives.h>: asynchronous, or complete on return. If one of the latter times out,
  // it is released, which stops collectives at all ranks until restore_collectives().
  result<operation> ibarrier() const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_ibarrier(handle_, out); });
  }
  result<operation> ibroadcast(buffer data, int root) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_ibroadcast(handle_, data, root, out); });
  }
  result<operation> igather(const_buffer source, buffer destination, int root) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_igather(handle_, source, destination, root, out); });
  }
  result<operation> iscatter(const_buffer source, buffer destination, int root) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_iscatter(handle_, source, destination, root, out); });
  }
  result<operation> iall_gather(const_buffer source, buffer destination) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_iall_gather(handle_, source, destination, out); });
  }
  result<operation> ireduce(const_buffer source, buffer destination, peerlane_element type, peerlane_reduction reduction,
                            int root) const {
    return begun([&](peerlane_op_t* out) {
      return peerlane_comm_ireduce(handle_, source, destination, static_cast<std::uint32_t>(type),
                                   static_cast<std::uint32_t>(reduction), root, out);
    });
  }
  result<operation> iall_reduce(const_buffer source, buffer destination, peerlane_element type,
                                peerlane_reduction reduction) const {
    return begun([&](peerlane_op_t* out) {
      return peerlane_comm_iall_reduce(handle_, source, destination, static_cast<std::uint32_t>(type),
                                       static_cast<std::uint32_t>(reduction), out);
    });
  }
  // `counts`: number of elements in each rank's block.
  result<operation> ireduce_scatter(const_buffer source, buffer destination, std::span<const std::size_t> counts,
                                    peerlane_element type, peerlane_reduction reduction) const {
    if (!is_for_each_rank(counts)) return not_for_each_rank();
    return begun([&](peerlane_op_t* out) {
      return peerlane_comm_ireduce_scatter(handle_, source, destination, counts.data(), static_cast<std::uint32_t>(type),
                                           static_cast<std::uint32_t>(reduction), out);
    });
  }
  result<operation> iall_to_all(const_buffer source, buffer destination) const {
    return begun([&](peerlane_op_t* out) { return peerlane_comm_iall_to_all(handle_, source, destination, out); });
  }
  // Lengths and offsets of the blocks of one side, in rank order, in bytes.
  struct block_sizes {
    std::span<const std::size_t> size_bytes, offset_bytes;
  };
  result<operation> iall_to_allv(const_buffer source, const block_sizes& sent, buffer destination,
                                 const block_sizes& received) const {
    for (const auto& each : {sent, received})
      if (!is_for_each_rank(each.size_bytes) || !is_for_each_rank(each.offset_bytes)) return not_for_each_rank();
    const peerlane_block_sizes left{sent.size_bytes.data(), sent.offset_bytes.data()};
    const peerlane_block_sizes arrived{received.size_bytes.data(), received.offset_bytes.data()};
    return begun(
        [&](peerlane_op_t* out) { return peerlane_comm_iall_to_allv(handle_, source, &left, destination, &arrived, out); });
  }

  status broadcast(buffer data, int root, std::chrono::milliseconds limit = no_limit) const {
    return done(ibroadcast(data, root), limit);
  }
  status gather(const_buffer source, buffer destination, int root, std::chrono::milliseconds limit = no_limit) const {
    return done(igather(source, destination, root), limit);
  }
  status scatter(const_buffer source, buffer destination, int root, std::chrono::milliseconds limit = no_limit) const {
    return done(iscatter(source, destination, root), limit);
  }
  status all_gather(const_buffer source, buffer destination, std::chrono::milliseconds limit = no_limit) const {
    return done(iall_gather(source, destination), limit);
  }
  status reduce(const_buffer source, buffer destination, peerlane_element type, peerlane_reduction reduction, int root,
                std::chrono::milliseconds limit = no_limit) const {
    return done(ireduce(source, destination, type, reduction, root), limit);
  }
  status all_reduce(const_buffer source, buffer destination, peerlane_element type, peerlane_reduction reduction,
                    std::chrono::milliseconds limit = no_limit) const {
    return done(iall_reduce(source, destination, type, reduction), limit);
  }
  status reduce_scatter(const_buffer source, buffer destination, std::span<const std::size_t> counts, peerlane_element type,
                        peerlane_reduction reduction, std::chrono::milliseconds limit = no_limit) const {
    return done(ireduce_scatter(source, destination, counts, type, reduction), limit);
  }
  status all_to_all(const_buffer source, buffer destination, std::chrono::milliseconds limit = no_limit) const {
    return done(iall_to_all(source, destination), limit);
  }
  status all_to_allv(const_buffer source, const block_sizes& sent, buffer destination, const block_sizes& received,
                     std::chrono::milliseconds limit = no_limit) const {
    return done(iall_to_allv(source, sent, destination, received), limit);
  }
  status restore_collectives(std::chrono::milliseconds limit = no_limit) const {
    return detail::to_status(peerlane_comm_restore_collectives(handle_, limit.count()));
  }
  result<std::string> algorithms() const {
    return detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_comm_algorithms(handle_, text, capacity, needed);
    });
  }

  result<peerlane_comm_statistics> statistics() const {
    peerlane_comm_statistics out{};
    out.struct_bytes = sizeof out;
    if (const int code = peerlane_comm_get_statistics(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<std::string> plan(int peer) const {
    return detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_comm_plan(handle_, peer, text, capacity, needed);
    });
  }

 private:
  template <class Begin>
  result<operation> begun(Begin&& begin) const {
    peerlane_op_t out{};
    if (const int code = begin(&out)) return failure{code, peerlane_last_error()};
    return operation(out);
  }
  static status done(result<operation> started, std::chrono::milliseconds limit) {
    if (!started) return std::move(started).error();
    auto outcome = started->wait(limit);
    return outcome ? status() : status(std::move(outcome).error());
  }
  bool is_for_each_rank(std::span<const std::size_t> list) const {
    return size() < 0 || list.size() == static_cast<std::size_t>(size());  // a closed one: the call says so
  }
  static failure not_for_each_rank() { return {EINVAL, "a list has not one number for each rank"}; }
  result<std::uint64_t> fetch(const window_key& key, std::uint64_t offset_bytes, peerlane_atomic kind, std::uint64_t operand,
                              std::uint64_t compare) const {
    std::uint64_t before = 0;
    auto asked = atomic(key, offset_bytes, kind, operand, compare, &before);
    if (!asked) return std::move(asked).error();
    if (auto done = asked->wait(); !done) return std::move(done).error();
    return before;
  }
};

}  // namespace peerlane
