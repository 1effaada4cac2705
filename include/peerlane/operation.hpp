// SPDX-License-Identifier: Apache-2.0
// C++ operations: RAII over <peerlane/operation.h>, which has the rules for all of them (lifetime, memory, threads).
//
//   auto received = comm.irecv(peer, peerlane::device_buffer(device_ptr, size_bytes), tag);   // result<operation>
//   auto written = store.begin_put(pool, "key", values);
//   received->wait(std::chrono::seconds(1));                                                  // result<op_info>
//   written->then([](const peerlane::op_info& info) { ... });
//
// Failures are values; the *_or_throw forms throw peerlane::error instead.
#pragma once

#include <peerlane/operation.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <peerlane/result.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace peerlane {

using op_info = peerlane_op_info;
inline constexpr std::chrono::milliseconds no_limit{PEERLANE_NO_LIMIT};

// The exception of *_or_throw: a failure that can be thrown.
class error : public std::exception {
 public:
  explicit error(failure reason, const op_info& info = {})
      : reason_(std::make_shared<const failure>(std::move(reason))), info_(info) {}
  int code() const noexcept { return reason_->code; }
  const char* what() const noexcept override { return reason_->message.c_str(); }
  // For EMSGSIZE: the source, tag and full length of the message that was truncated.
  const op_info& info() const noexcept { return info_; }

 private:
  std::shared_ptr<const failure> reason_;  // copies of exceptions must not throw
  op_info info_;
};

template <class T>
T value_or_throw(result<T> outcome, const op_info& info = {}) {
  if (!outcome) throw error(std::move(outcome).error(), info);
  return *std::move(outcome);
}
inline void value_or_throw(const status& outcome) {
  if (!outcome) throw error(outcome.error());
}

// An asynchronous operation. Destroying one that has not ended calls peerlane_op_release(): its memory may be reused
// afterwards. Destroy it before its copier, communicator or store. An empty one counts as successful. Move-only.
class operation {
 public:
  operation() = default;
  // Takes ownership of an operation that a C call wrote.
  explicit operation(const peerlane_op_t& begun) noexcept : op_(begun) {}
  operation(operation&& other) noexcept : op_(other.give_up()) {}
  operation& operator=(operation&& other) noexcept {
    if (this != &other) {
      release();
      op_ = other.give_up();
    }
    return *this;
  }
  ~operation() { release(); }

  bool is_empty() const noexcept { return peerlane_op_is_empty(&op_) != 0; }
  const peerlane_op_t& get() const noexcept { return op_; }
  // Gives up ownership: the caller must end the returned handle.
  peerlane_op_t give_up() noexcept { return std::exchange(op_, peerlane_op_t{}); }

  // Returns true if the operation has ended; it is then empty. `info`, if passed, is its result, also after an error.
  result<bool> test(op_info* info = nullptr) {
    int done = 0;
    if (const int code = peerlane_op_test(&op_, &done, info)) return last_failure(code);
    return done != 0;
  }
  // ETIMEDOUT with the operation not empty: it continues. EMSGSIZE: the message was truncated. `info`, if passed, is the
  // result, also after an error: for a truncated message, info->size_bytes is the full length.
  result<op_info> wait(std::chrono::milliseconds limit = no_limit, op_info* info = nullptr) {
    op_info own{};
    op_info& ended = info != nullptr ? *info : own;
    if (const int code = peerlane_op_wait(&op_, limit.count(), &ended)) return last_failure(code);
    return ended;
  }
  op_info wait_or_throw(std::chrono::milliseconds limit = no_limit) {
    op_info info{};
    auto outcome = wait(limit, &info);
    return value_or_throw(std::move(outcome), info);
  }
  // EBUSY: too late, the operation continues.
  status cancel() const { return to_status(peerlane_op_cancel(&op_)); }
  // Calls function(info) once when the operation has ended, in a thread as described at peerlane_op_then(). The function
  // must not block or throw.
  template <class Function>
  status then(Function&& function) const {
    using kept = std::decay_t<Function>;
    auto* const made = new (std::nothrow) kept(std::forward<Function>(function));
    if (made == nullptr) return failure{ENOMEM, "memory is exhausted: nothing was changed"};
    const int code = peerlane_op_then(
        &op_,
        [](void* context, const op_info* info) {
          const std::unique_ptr<kept> once(static_cast<kept*>(context));
          (*once)(*info);
        },
        made);
    if (code != 0) delete made;
    return to_status(code);
  }
  // Ends the operation in any state and discards its result.
  void release() noexcept {
    peerlane_op_release(&op_);
    op_ = {};  // also where its owner had been closed
  }

 private:
  failure last_failure(int code) const { return {code, peerlane_op_last_error(&op_)}; }
  status to_status(int code) const { return code == 0 ? status{} : status(last_failure(code)); }
  peerlane_op_t op_{};
};

namespace detail {
// Passes `operations` as an array to a C call, which ends some of them.
template <class Call>
auto with_c_operations(std::span<operation> operations, Call&& call) {
  std::array<peerlane_op_t, 64> few{};
  std::vector<peerlane_op_t> many(operations.size() > few.size() ? operations.size() : 0);
  const std::span<peerlane_op_t> ops(many.empty() ? few.data() : many.data(), operations.size());
  std::transform(operations.begin(), operations.end(), ops.begin(), [](operation& one) { return one.give_up(); });
  auto outcome = call(ops);
  for (std::size_t i = 0; i < ops.size(); ++i) operations[i] = operation(ops[i]);
  return outcome;
}
inline failure wait_failure(int code, std::span<const peerlane_op_t> ops) {
  for (const auto& op : ops)
    if (op.calls != nullptr) return {code, peerlane_op_last_error(&op)};
  return {code, "operations are missing: give as many as the count says"};
}
}  // namespace detail

// Waits until all have ended, and returns the first error. ETIMEDOUT: operations that are not empty continue. `infos` is
// empty or as long as `operations`, which may be of different kinds and owners.
inline status wait_all(std::span<operation> operations, std::chrono::milliseconds limit = no_limit,
                       std::span<op_info> infos = {}) {
  if (!infos.empty() && infos.size() != operations.size())
    return failure{EINVAL, "wait_all: infos and operations differ in number"};
  return detail::with_c_operations(operations, [&](std::span<peerlane_op_t> ops) -> status {
    const int code = peerlane_wait_all(ops.data(), ops.size(), limit.count(), infos.empty() ? nullptr : infos.data());
    return code == 0 ? status{} : status(detail::wait_failure(code, ops));
  });
}

// Waits until one has ended, and returns its index (it is then empty), or operations.size() if all were empty. An error is
// that of the operation (`info`, if passed, is its result), or ETIMEDOUT if none has ended.
inline result<std::size_t> wait_any(std::span<operation> operations, std::chrono::milliseconds limit = no_limit,
                                    op_info* info = nullptr) {
  return detail::with_c_operations(operations, [&](std::span<peerlane_op_t> ops) -> result<std::size_t> {
    std::size_t index = 0;
    if (const int code = peerlane_wait_any(ops.data(), ops.size(), limit.count(), &index, info))
      return detail::wait_failure(code, ops);
    return index;
  });
}

}  // namespace peerlane
