// SPDX-License-Identifier: Apache-2.0
// Messages, put and get between the tensors of a job's processes (peerlane/communicator.hpp).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <peerlane/communicator.hpp>
#include <string>

#include "call_gate.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "tensor.hpp"

namespace nb = nanobind;

namespace pl::py {

// A process's rank in a communicator. Threads: any; calls that can wait release the GIL.
class communicator {
 public:
  communicator(const std::string& rendezvous, int rank, int size, bool host_only, double open_timeout_s, bool elastic) {
    auto options = peerlane::communicator::options();
    options.rendezvous = rendezvous.empty() ? nullptr : rendezvous.c_str();
    options.rank = rank;
    options.size = size;
    options.host_only = host_only ? 1 : 0;
    options.elastic = elastic ? PEERLANE_YES : PEERLANE_AS_SET;
    options.open_timeout_ms = static_cast<std::int64_t>(std::ceil(std::max(1.0, open_timeout_s) * 1000));
    const gil_release waiting;
    link_ = value_of(peerlane::communicator::open(&options));
  }
  ~communicator() { close(); }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  // Waits for calls of other threads, which may themselves wait for operations.
  void close() {
    if (call_gate::is_in_call())
      throw error(EDEADLK, "a function of then() cannot close a communicator: the call that it is in uses it");
    if (gate_->is_inherited()) return;
    const gil_release waiting;
    const bool is_alone = gate_->close();
    const std::lock_guard alone(closing_);
    if (is_alone) link_.reset();
    else static_cast<void>(new peerlane::communicator(std::move(link_)));  // leaked: a call may still use it
  }
  // The communicator for the duration of a call, which keeps it open.
  class call {
   public:
    explicit call(const communicator& self) : gate_(self.gate_), inside_(gate_.get()), link_(self.link_) {
      if (!inside_) throw nb::value_error("the communicator is closed");
    }
    const peerlane::communicator* operator->() const noexcept { return &link_; }
    const peerlane::communicator& operator*() const noexcept { return link_; }

   private:
    const call_gate_ref gate_;
    const call_gate::entry inside_;
    const peerlane::communicator& link_;
  };
  const call_gate_ref& gate() const noexcept { return gate_; }

 private:
  const call_gate_ref gate_ = std::make_shared<call_gate>();
  std::mutex closing_;
  peerlane::communicator link_;
};

// The tensor of a message. Waits for work queued on its stream, because a CPU or another process will access it.
tensor settled(nb::handle object, bool is_written, nb::handle after);

void bind_communicator(nb::module_& module);

}  // namespace pl::py
