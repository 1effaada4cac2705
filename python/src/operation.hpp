// SPDX-License-Identifier: Apache-2.0
// peerlane.Operation: a copy, message, put or get that continues after its call (peerlane/operation.hpp).
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <peerlane/operation.hpp>
#include <tuple>

#include "call_gate.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "process.hpp"

namespace nb = nanobind;

namespace pl::py {

using op_info = std::tuple<int, std::uint64_t, std::uint64_t>;  // source, tag, size_bytes

// Throws the error of an operation. If a message was longer than its tensor, the Error also has source, tag and size_bytes
// (the length of the message).
[[noreturn]] void throw_failed(const peerlane::failure& reason, const peerlane::op_info& info);

// operation.wait(limit, &info) in slices. Ctrl-C ends the wait; the operation continues. ECANCELED: the owner was closed
// meanwhile.
peerlane::result<peerlane::op_info> wait_for_end(peerlane::operation& operation, std::chrono::milliseconds limit,
                                                 peerlane::op_info& info, call_gate* gate = nullptr);

// The error of an operation whose owner was closed.
inline peerlane::failure owner_closed() { return {ECANCELED, "the communicator was closed before the operation had ended"}; }

// Keeps its owner and its tensors alive. Thread-safe. Deleting it waits for a copy or a store's request, cancels a message,
// and gives a collective up, which stops those of all ranks. The functions that the module peerlane._store needs are inline,
// because modules do not link each other.
class operation {
 public:
  enum class kind : std::uint8_t { copy, message, collective, store };
  // `gate`: of the owner, if the owner can be closed before the operation has ended.
  operation(peerlane::operation begun, nb::object owner, nb::object first, nb::object second, kind made_by,
            call_gate_ref gate = nullptr)
      : owner_(std::move(owner)),
        first_(std::move(first)),
        second_(std::move(second)),
        gate_(std::move(gate)),
        begun_(std::move(begun)),
        kind_(made_by) {}
  ~operation() {
    const gil_release waiting;
    const call_gate::entry inside(gate_.get());
    if (!inside) (void)begun_.give_up();
    begun_.release();
  }
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  // Makes progress once, without the GIL. False also while another thread is inside.
  bool poll();
  bool done();
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }
  bool can_cancel() const noexcept { return kind_ == kind::message; }
  bool has_descriptor() const noexcept { return kind_ == kind::copy; }
  // Returns the outcome of an operation that has ended, or throws its error.
  op_info outcome();
  op_info wait(nb::handle timeout);
  // Returns the details of an operation that has ended; None before.
  nb::object info() const;
  void cancel();
  void then(nb::object function);
  void make_wait(nb::handle stream);
  void record(nb::handle event);
  int descriptor();

 private:
  void check_process() const;
  void keep_closed();
  void keep(const peerlane::result<peerlane::op_info>& outcome, const peerlane::op_info& info);
  nb::object owner_, first_, second_;  // declared before begun_, so that they are released after it
  const call_gate_ref gate_;           // may be null
  std::mutex mutex_;                   // guards the fields below; never held while waiting for the GIL
  peerlane::operation begun_;
  peerlane::op_info info_{};
  std::optional<peerlane::failure> failed_;
  std::atomic<bool> has_ended_{false};
  const kind kind_;
  const pid_t process_ = process_number();
};

void bind_operations(nb::module_& module);

}  // namespace pl::py
