// SPDX-License-Identifier: Apache-2.0
// Anything that goes on after its call: a copy, a message, a put or a get (peerlane/operation.hpp).
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

namespace nb = nanobind;

namespace pl::py {

using op_info = std::tuple<int, std::uint64_t, std::uint64_t>;  // source, tag, size_bytes

// What a message that was longer than its tensor raises: its Error also has source, tag and size_bytes, the true length.
[[noreturn]] void throw_failed(const peerlane::failure& reason, const peerlane::op_info& info);

// operation.wait(limit, &info); Ctrl-C ends it, and leaves the operation under way.
// Ends with ECANCELED where the owner is closed meanwhile.
peerlane::result<peerlane::op_info> wait_for_end(peerlane::operation& operation, std::chrono::milliseconds limit,
                                                 peerlane::op_info& info, call_gate* gate = nullptr);

// Of an operation whose owner was closed.
inline peerlane::failure owner_closed() { return {ECANCELED, "the communicator was closed before the operation had ended"}; }

// Keeps its owner and its tensors. Any thread. Dropping it releases it: a copy and a store's request are waited for, a
// message is withdrawn. What peerlane._store needs of it is inline.
class operation {
 public:
  enum class kind : std::uint8_t { copy, message, store };
  // `gate`: the owner's, where its close() may come before the operation's end.
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
  // Once it has ended; throws what went wrong.
  op_info outcome();
  op_info wait(nb::handle timeout);
  // Everything that is known of one that has ended; None before.
  nb::object info() const;
  void cancel();
  void then(nb::object function);
  void make_wait(nb::handle stream);
  void record(nb::handle event);
  int descriptor();

 private:
  void keep_closed();
  void keep(const peerlane::result<peerlane::op_info>& outcome, const peerlane::op_info& info);
  nb::object owner_, first_, second_;  // before begun_: it goes first
  const call_gate_ref gate_;           // may be null
  std::mutex mutex_;                   // of what is below; its owner never waits for the GIL
  peerlane::operation begun_;
  peerlane::op_info info_{};
  std::optional<peerlane::failure> failed_;
  std::atomic<bool> has_ended_{false};
  const kind kind_;
};

void bind_operations(nb::module_& module);

}  // namespace pl::py
