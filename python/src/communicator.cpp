// SPDX-License-Identifier: Apache-2.0
#include "communicator.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "arguments.hpp"
#include "collectives.hpp"
#include "device_span.hpp"
#include "gil.hpp"
#include "operation.hpp"
#include "stream_order.hpp"
#include "torch.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

class window {
 public:
  window(nb::object owner, nb::object memory, peerlane::window exposed, call_gate_ref gate)
      : communicator_(std::move(owner)), memory_(std::move(memory)), gate_(std::move(gate)), exposed_(std::move(exposed)) {}
  ~window() {
    const gil_release waiting;  // waits for a peer that may still read the memory
    const call_gate::entry inside(gate_.get());
    exposed_.reset();
  }
  window(const window&) = delete;
  window& operator=(const window&) = delete;
  nb::bytes key() const { return nb::bytes(&exposed_.key(), sizeof exposed_.key()); }
  void close() {
    const auto outcome = [&] {
      const gil_release waiting;
      const call_gate::entry inside(gate_.get());
      if (inside) return exposed_.release();
      exposed_.reset();  // it has ended with its communicator
      return peerlane::status{};
    }();
    must(outcome);
    memory_ = nb::none();  // nobody reads it any more: a bytearray can be resized, GPU memory freed
  }

 private:
  nb::object communicator_, memory_;
  const call_gate_ref gate_;
  peerlane::window exposed_;
};

peerlane::window_key key_of(const bytes_argument& argument) {
  const nb::bytes given = argument.as("key");
  peerlane::window_key out{};
  if (given.size() != sizeof out)
    throw nb::value_error("the key does not belong to a window: pass the key of a window from expose()");
  std::memcpy(&out, given.c_str(), sizeof out);
  return out;
}

using self_t = nb::handle_t<communicator>;
communicator::call link_of(self_t self) { return communicator::call(*nb::inst_ptr<communicator>(self)); }
const call_gate_ref& gate_of(self_t self) { return nb::inst_ptr<communicator>(self)->gate(); }

std::unique_ptr<operation> operation_of(self_t self, nb::handle x, tensor& view, peerlane::operation begun) {
  return std::make_unique<operation>(std::move(begun), nb::borrow(self), keep_alive_of(x, view), nb::none(),
                                     operation::kind::message, gate_of(self));
}

// Begins an operation without the GIL; short messages are copied within this call.
template <class Begin>
peerlane::operation begun_by(self_t self, const tensor& view, Begin&& begin) {
  const auto link = link_of(self);
  const auto memory = memory_of(view);
  const gil_release waiting;
  return value_of(begin(*link, memory));
}

peerlane::operation begin_send(self_t self, const tensor& view, integer_argument peer, integer_argument tag) {
  const auto rank = peer.as<int>("peer");
  const auto tag_bits = tag.as<std::uint64_t>("tag");
  return begun_by(self, view, [&](const auto& link, const auto& memory) { return link.isend(rank, memory, tag_bits); });
}

peerlane::operation begin_receive(self_t self, const tensor& view, integer_argument source, integer_argument tag,
                                  integer_argument mask) {
  const auto rank = source.as<int>("source");
  const auto tag_bits = tag.as<std::uint64_t>("tag"), bits = mask.as<std::uint64_t>("mask");
  return begun_by(self, view,
                  [&](const auto& link, const auto& memory) { return link.irecv(rank, memory, tag_bits, bits); });
}

std::unique_ptr<operation> isend(self_t self, integer_argument peer, nb::handle x, integer_argument tag, nb::handle after) {
  tensor view = settled(x, false, after);
  return operation_of(self, x, view, begin_send(self, view, peer, tag));
}

std::unique_ptr<operation> irecv(self_t self, integer_argument source, nb::handle x, integer_argument tag,
                                 integer_argument mask, nb::handle after) {
  tensor view = settled(x, true, after);
  return operation_of(self, x, view, begin_receive(self, view, source, tag, mask));
}

std::unique_ptr<operation> await_failure(self_t self) {
  return std::make_unique<operation>(value_of(link_of(self)->await_failure()), nb::borrow(self), nb::none(), nb::none(),
                                     operation::kind::message, gate_of(self));
}

// Waits for the end of a blocking call. After the time limit or Ctrl-C, cancels the operation, or waits for it if it is too
// late to cancel, so that the caller may use the memory again.
peerlane::op_info end_blocking(self_t self, peerlane::operation& begun, std::chrono::milliseconds limit) {
  const call_gate_ref gate = gate_of(self);
  const auto withdraw = [&] {
    const gil_release waiting;
    const call_gate::entry inside(gate.get());
    if (!inside) (void)begun.give_up();
    begun.release();
  };
  try {
    peerlane::op_info info{};
    auto outcome = wait_for_end(begun, limit, info, gate.get());
    if (outcome) return *outcome;
    withdraw();
    throw_failed(outcome.error(), info);
  } catch (nb::python_error&) {
    withdraw();
    throw;
  }
}

void send(self_t self, integer_argument peer, nb::handle x, integer_argument tag, nb::handle timeout, nb::handle after) {
  const tensor view = settled(x, false, after);
  const auto limit = limit_of(timeout);
  auto begun = begin_send(self, view, peer, tag);
  end_blocking(self, begun, limit);
}

op_info receive(self_t self, integer_argument source, nb::handle x, integer_argument tag, integer_argument mask,
                nb::handle timeout, nb::handle after) {
  const tensor view = settled(x, true, after);
  const auto limit = limit_of(timeout);
  auto begun = begin_receive(self, view, source, tag, mask);
  const auto info = end_blocking(self, begun, limit);
  return {info.source, info.tag, info.size_bytes};
}

std::unique_ptr<operation> put(self_t self, bytes_argument key, integer_argument offset, nb::handle x, nb::handle after) {
  tensor view = settled(x, false, after);
  const auto key_bytes = key_of(key);
  const auto offset_bytes = offset.as<std::uint64_t>("offset");
  return operation_of(self, x, view, begun_by(self, view, [&](const auto& link, const auto& memory) {
                        return link.put(key_bytes, offset_bytes, memory);
                      }));
}

std::unique_ptr<operation> put_signal(self_t self, bytes_argument key, integer_argument offset, nb::handle x,
                                      integer_argument value, bytes_argument signal_key, integer_argument signal_offset,
                                      bool does_add, nb::handle after) {
  tensor view = settled(x, false, after);
  const auto key_bytes = key_of(key);
  const auto offset_bytes = offset.as<std::uint64_t>("offset");
  const peerlane_signal signal{key_of(signal_key), signal_offset.as<std::uint64_t>("signal_offset"),
                               value.as<std::uint64_t>("value"),
                               static_cast<std::uint32_t>(does_add ? PEERLANE_SIGNAL_ADD : PEERLANE_SIGNAL_SET), 0};
  return operation_of(self, x, view, begun_by(self, view, [&](const auto& link, const auto& memory) {
                        return link.put_signal(key_bytes, offset_bytes, memory, signal);
                      }));
}

std::uint64_t wait_signal(self_t self, bytes_argument key, integer_argument offset, integer_argument least,
                          nb::handle timeout) {
  const auto limit = limit_of(timeout);
  const auto key_bytes = key_of(key);
  const auto offset_bytes = offset.as<std::uint64_t>("offset"), wanted = least.as<std::uint64_t>("least");
  const auto link = link_of(self);
  peerlane::result<std::uint64_t> seen = peerlane::failure{ETIMEDOUT, {}};
  (void)wait_in_slices(limit, [&](std::chrono::milliseconds slice) {
    seen = link->wait_signal(key_bytes, offset_bytes, wanted, slice);
    return seen || seen.error().code != ETIMEDOUT;
  });
  return value_of(std::move(seen));
}

std::unique_ptr<operation> get(self_t self, bytes_argument key, integer_argument offset, nb::handle x, nb::handle after) {
  tensor view = settled(x, true, after);
  const auto key_bytes = key_of(key);
  const auto offset_bytes = offset.as<std::uint64_t>("offset");
  return operation_of(self, x, view, begun_by(self, view, [&](const auto& link, const auto& memory) {
                        return link.get(key_bytes, offset_bytes, memory);
                      }));
}

std::uint64_t fetch_add(self_t self, bytes_argument key, integer_argument offset, integer_argument operand) {
  const auto key_bytes = key_of(key);
  const auto offset_bytes = offset.as<std::uint64_t>("offset"), added = operand.as<std::uint64_t>("operand");
  const auto link = link_of(self);
  const gil_release waiting;
  return value_of(link->fetch_add(key_bytes, offset_bytes, added));
}

std::unique_ptr<window> expose(self_t self, nb::handle x) {
  tensor view = describe(x, "expose");
  must_be_one_run(view, true);
  const auto link = link_of(self);
  auto made = [&] {
    const gil_release waiting;  // memory may be registered with the network
    return value_of(link->expose(memory_of(view)));
  }();
  return std::make_unique<window>(nb::borrow(self), keep_alive_of(x, view), std::move(made), gate_of(self));
}

std::unique_ptr<operation> await_return(self_t self) {
  return std::make_unique<operation>(value_of(link_of(self)->await_return()), nb::borrow(self), nb::none(), nb::none(),
                                     operation::kind::message, gate_of(self));
}

void restore_collectives(self_t self, nb::handle timeout) {
  const auto limit = limit_of(timeout);
  const auto link = link_of(self);
  const gil_release waiting;
  must(link->restore_collectives(limit));
}

// After the time limit or Ctrl-C, the next call continues the same barrier.
void barrier(self_t self, nb::handle timeout) {
  const auto limit = limit_of(timeout);
  const auto link = link_of(self);
  peerlane::status outcome;
  (void)wait_in_slices(limit, [&](std::chrono::milliseconds slice) {
    outcome = link->barrier(slice);
    return outcome || outcome.code() != ETIMEDOUT;
  });
  must(outcome);
}

nb::typed<nb::list, nb::bytes> all_gather(self_t self, bytes_argument given) {
  const nb::bytes mine = given.as("all_gather");
  const auto link = link_of(self);
  const auto bytes = mine.size();
  std::string all(bytes * static_cast<std::size_t>(link->size()), '\0');
  {
    const gil_release waiting;
    if (const int code = peerlane_comm_all_gather(link->get(), mine.c_str(), bytes, all.data()))
      throw error(code, peerlane_last_error());
  }
  nb::list out;
  for (int rank = 0; rank < link->size(); ++rank)
    out.append(nb::bytes(all.data() + static_cast<std::size_t>(rank) * bytes, bytes));
  return out;
}

nb::typed<nb::dict, nb::str, int> statistics(self_t self) {
  const auto counters = value_of(link_of(self)->statistics());
  nb::dict out;
  out["eager"] = counters.eager;
  out["self"] = counters.self;
  out["shared_ring"] = counters.shared_ring;
  out["network_ring"] = counters.network_ring;
  out["ipc"] = counters.ipc;
  out["ucx_direct"] = counters.ucx_direct;
  out["unexpected"] = counters.unexpected;
  out["waiting_sends"] = counters.waiting_sends;
  out["operations"] = counters.operations;
  out["one_sided"] = counters.one_sided;
  out["dma"] = counters.dma;
  return out;
}

}  // namespace

tensor settled(nb::handle object, bool is_written, nb::handle after) {
  tensor view = describe(object, "the message's tensor");
  must_be_one_run(view, is_written);
  wait_for(busy_streams(after, std::array{static_cast<const tensor*>(&view)}));
  return view;
}

void bind_communicator(nb::module_& module) {
  module.attr("ANY_SOURCE") = peerlane::any_source;
  module.attr("FAILURE_LOST") = static_cast<int>(PEERLANE_FAILURE_LOST);
  module.attr("FAILURE_CLOSED") = static_cast<int>(PEERLANE_FAILURE_CLOSED);
  module.attr("WHOLE_TAG") = peerlane::whole_tag;
  nb::class_<window>(module, "Window", "Memory that other processes can put to and get from, until it is closed or deleted.")
      .def_prop_ro("key", &window::key, "The key, as bytes, for the other processes: send it by any means.")
      .def("close", &window::close,
           "Ends the peers' access to the memory. Timeout: a peer does not answer and may still read it; call again. You "
           "may call it\nrepeatedly.");
  const auto any = nb::arg("after").none() = "auto";
  nb::class_<communicator> type(module, "Communicator", nb::is_weak_referenceable(),
                                "What peerlane.communicator.open() returns.");
  bind_collectives(type);
  type.def(nb::init<const std::string&, int, int, bool, double, bool>(), nb::arg("rendezvous"), nb::arg("rank"),
           nb::arg("size"), nb::arg("host_only"), nb::arg("open_timeout"), nb::arg("elastic"))
      .def("close", &communicator::close,
           "Leaves the job. Operations in progress end with an error (ECANCELED). It waits for calls of other threads. You "
           "may call it\nrepeatedly.")
      .def_prop_ro(
          "rank", [](self_t self) { return link_of(self)->rank(); }, "Rank of this process, from 0.")
      .def_prop_ro(
          "size", [](self_t self) { return link_of(self)->size(); }, "Number of processes in the job.")
      .def("send", &send, nb::arg("peer").none(), nb::arg("x").none(), nb::arg("tag").none() = 0, nb::kw_only(),
           nb::arg("timeout").none() = nb::none(), any,
           nb::sig("def send(self, peer: int, x: peerlane._types.AnyArray, tag: int = 0, *, timeout: float | None = None, "
                   "after: peerlane._types.After = 'auto') -> None"),
           "Sends a contiguous tensor in GPU or host memory. When it returns, you may write the tensor again.")
      .def(
          "recv", &receive, nb::arg("source").none(), nb::arg("x").none(), nb::arg("tag").none() = 0,
          nb::arg("mask").none() = peerlane::whole_tag, nb::kw_only(), nb::arg("timeout").none() = nb::none(), any,
          nb::sig("def recv(self, source: int, x: peerlane._types.AnyArray, tag: int = 0, mask: int = 18446744073709551615, "
                  "*, timeout: float | None = None, after: peerlane._types.After = 'auto') -> tuple[int, int, int]"),
          "Receives into the tensor and returns (source, tag, size_bytes). GPU work launched afterwards sees the data.")
      .def("isend", &isend, nb::arg("peer").none(), nb::arg("x").none(), nb::arg("tag").none() = 0, nb::kw_only(), any,
           nb::sig("def isend(self, peer: int, x: peerlane._types.AnyArray, tag: int = 0, *, after: peerlane._types.After = "
                   "'auto') -> Operation"),
           "Begins a send. The operation keeps the tensor, which must not be written until it has ended.")
      .def("irecv", &irecv, nb::arg("source").none(), nb::arg("x").none(), nb::arg("tag").none() = 0,
           nb::arg("mask").none() = peerlane::whole_tag, nb::kw_only(), any,
           nb::sig("def irecv(self, source: int, x: peerlane._types.AnyArray, tag: int = 0, mask: int = "
                   "18446744073709551615, *, after: peerlane._types.After = 'auto') -> Operation"),
           "Begins a receive. The tensor must not be touched until the operation has ended.")
      .def("expose", &expose, nb::arg("x").none(), nb::sig("def expose(self, x: peerlane._types.AnyArray) -> Window"),
           "Lets peers put to and get from the tensor. The window keeps the tensor. Send the window's key to the peers.")
      .def("put", &put, nb::arg("key").none(), nb::arg("offset").none(), nb::arg("x").none(), nb::kw_only(), any,
           nb::sig("def put(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = "
                   "'auto') -> Operation"),
           "Writes the tensor to a peer's window. The data is there when the operation has ended.")
      .def("put_signal", &put_signal, nb::arg("key").none(), nb::arg("offset").none(), nb::arg("x").none(),
           nb::arg("value").none() = 1, nb::kw_only(), nb::arg("signal_key").none(), nb::arg("signal_offset").none(),
           nb::arg("add") = true, any,
           nb::sig("def put_signal(self, key: bytes, offset: int, x: peerlane._types.AnyArray, value: int = 1, *, "
                   "signal_key: bytes, signal_offset: int, add: bool = True, after: peerlane._types.After = 'auto') -> "
                   "Operation"),
           "Like put, then adds the value to an aligned 64-bit word in a window of the same process, or sets the word. A "
           "process that\nsees the new value of the word also sees the tensor's bytes.")
      .def("wait_signal", &wait_signal, nb::arg("key").none(), nb::arg("offset").none(), nb::arg("least").none(),
           nb::arg("timeout").none() = nb::none(),
           nb::sig("def wait_signal(self, key: bytes, offset: int, least: int, timeout: float | None = None) -> int"),
           "Waits until the word in this process's window is at least `least`, and returns its value. The limit is in "
           "seconds.")
      .def("get", &get, nb::arg("key").none(), nb::arg("offset").none(), nb::arg("x").none(), nb::kw_only(), any,
           nb::sig("def get(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = "
                   "'auto') -> Operation"),
           "Fills the tensor from a peer's window, from byte `offset` on.")
      .def("fetch_add", &fetch_add, nb::arg("key").none(), nb::arg("offset").none(), nb::arg("operand").none(),
           nb::sig("def fetch_add(self, key: bytes, offset: int, operand: int) -> int"),
           "Adds to an aligned 64-bit word of a window and returns the old value.")
      .def("barrier", &barrier, nb::arg("timeout").none() = nb::none(),
           nb::sig("def barrier(self, timeout: float | None = None) -> None"),
           "Returns when every process has called it. The limit is in seconds.")
      .def("all_gather", &all_gather, nb::arg("mine").none(), nb::sig("def all_gather(self, mine: bytes) -> list[bytes]"),
           "Returns the bytes of every rank, in the order of ranks. All have one length. Use it for setup.")
      .def(
          "progress",
          [](self_t self) {
            const auto link = link_of(self);
            const gil_release waiting;
            return value_of(link->progress());
          },
          "Makes progress on all operations once. True: something has progressed.")
      .def(
          "event_descriptor", [](self_t self) { return value_of(link_of(self)->event_descriptor()); },
          "A descriptor for select, poll or loop.add_reader. It is readable when something happens after arm() has returned "
          "True. The\ncommunicator owns it.")
      .def(
          "arm",
          [](self_t self) {
            const auto armed = link_of(self)->arm();
            if (armed.code() == EBUSY) return false;
            must(armed);
            return true;
          },
          "Call it before each sleep on the descriptor. False: something has happened since the last call, so check the "
          "operations\nfirst.")
      .def(
          "peer_is_alive",
          [](self_t self, integer_argument peer) { return link_of(self)->peer_state(peer.as<int>("peer")).code() == 0; },
          nb::arg("peer").none(), nb::sig("def peer_is_alive(self, peer: int) -> bool"),
          "False if the process is known to have ended.")
      .def("await_failure", &await_failure, nb::sig("def await_failure(self) -> Operation"),
           "An operation that ends when a process of the job is gone: (rank, FAILURE_LOST or FAILURE_CLOSED, 0). Each "
           "process is\nreported once, even if it was already gone.")
      .def("await_return", &await_return, nb::sig("def await_return(self) -> Operation"),
           "In an elastic job: an operation that ends when a rank is back as a new process, (rank, its incarnation, 0). "
           "Every rank needs\none for each return.")
      .def(
          "incarnation",
          [](self_t self, integer_argument peer) { return value_of(link_of(self)->incarnation(peer.as<int>("peer"))); },
          nb::arg("peer").none(), nb::sig("def incarnation(self, peer: int) -> int"),
          "Number of the rank's current process, from 1; 0: this process has not known any.")
      .def("restore_collectives", &restore_collectives, nb::arg("timeout").none() = nb::none(),
           nb::sig("def restore_collectives(self, timeout: float | None = None) -> None"),
           "Enables collectives again. All ranks call it, in an elastic job after every loss. The limit is in seconds.")
      .def(
          "plan", [](self_t self, integer_argument peer) { return value_of(link_of(self)->plan(peer.as<int>("peer"))); },
          nb::arg("peer").none(), nb::sig("def plan(self, peer: int) -> str"),
          "Returns the transport of messages for each size, as readable text.")
      .def("statistics", &statistics, nb::sig("def statistics(self) -> peerlane._types.MessageCounts"),
           "Messages sent, by transport.");
}

}  // namespace pl::py
