// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "device_span.hpp"
#include "stream_order.hpp"

namespace pl::py {
namespace {

using told_message = std::tuple<int, std::uint64_t, std::uint64_t>;  // source, tag, bytes

// A process's place in a job. Threads: any; calls that can wait release the GIL.
class messenger {
 public:
  messenger(const std::string& rendezvous, int rank, int size, bool host_only, double open_timeout_s) {
    auto options = peerlane::messenger::options();
    options.rendezvous = rendezvous.empty() ? nullptr : rendezvous.c_str();
    options.rank = rank;
    options.size = size;
    options.host_only = host_only ? 1 : 0;
    options.open_timeout_s = static_cast<std::uint32_t>(std::max(1.0, std::ceil(open_timeout_s)));
    const nb::gil_scoped_release waiting;
    link_ = value_of(peerlane::messenger::open(&options));
  }
  ~messenger() { close(); }
  messenger(const messenger&) = delete;
  messenger& operator=(const messenger&) = delete;
  void close() {
    const nb::gil_scoped_release waiting;
    link_.reset();
  }
  const peerlane::messenger& link() const {
    if (link_.get() == nullptr) throw nb::value_error("the messenger is closed");
    return link_;
  }

 private:
  peerlane::messenger link_;
};

// An operation under way: keeps its tensor and its messenger.
class request {
 public:
  request(nb::object from, nb::object memory, peerlane::request operation)
      : from_(std::move(from)), memory_(std::move(memory)), operation_(std::move(operation)) {}
  ~request() {
    const nb::gil_scoped_release waiting;
    operation_.reset();
  }
  request(const request&) = delete;
  request& operator=(const request&) = delete;

  bool done() {
    if (ended_) return true;
    peerlane::message_info info{};
    auto outcome = operation_.test(&info);
    if (!outcome || *outcome) ended_ = info;
    if (!outcome) failed_ = outcome.error();
    return ended_.has_value();
  }
  told_message wait(nb::handle timeout) {
    if (!ended_) {
      const auto limit = limit_of(timeout);
      const auto outcome = [&] {
        const nb::gil_scoped_release waiting;
        return operation_.wait(limit);
      }();
      if (!outcome && !operation_.is_empty()) throw error(outcome.error());  // timed out: it goes on
      ended_ = outcome ? *outcome : peerlane::message_info{};
      if (!outcome) failed_ = outcome.error();
      from_ = memory_ = nb::none();
    }
    if (failed_) throw error(*failed_);
    return {ended_->source, ended_->tag, ended_->bytes};
  }
  void cancel() {
    if (!ended_) must(operation_.cancel());
  }

 private:
  nb::object from_, memory_;  // before operation_: it goes first
  peerlane::request operation_;
  std::optional<peerlane::message_info> ended_;
  std::optional<peerlane::failure> failed_;
};

class window {
 public:
  window(nb::object from, nb::object memory, peerlane::window exposed)
      : from_(std::move(from)), memory_(std::move(memory)), exposed_(std::move(exposed)) {}
  nb::bytes key() const { return nb::bytes(&exposed_.key(), sizeof exposed_.key()); }
  void close() { exposed_.reset(); }

 private:
  nb::object from_, memory_;
  peerlane::window exposed_;
};

peerlane::window_key key_of(const nb::bytes& given) {
  peerlane::window_key out{};
  if (given.size() != sizeof out) throw nb::value_error("this is no window's key");
  std::memcpy(&out, given.c_str(), sizeof out);
  return out;
}

// What was queued for the tensor must be over before a CPU or another process touches it.
tensor settled(nb::handle object, bool is_written, nb::handle after) {
  tensor what = describe(object);
  must_be_one_run(what, is_written);
  wait_for(busy_streams(after, std::array{static_cast<const tensor*>(&what)}));
  return what;
}

using self_t = nb::handle_t<messenger>;
const peerlane::messenger& link_of(self_t self) { return nb::inst_ptr<messenger>(self)->link(); }

std::unique_ptr<request> request_of(self_t self, tensor& what, peerlane::result<peerlane::request> begun) {
  return std::make_unique<request>(nb::borrow(self), std::move(what.owner), value_of(std::move(begun)));
}

std::unique_ptr<request> isend(self_t self, int peer, nb::handle x, std::uint64_t tag, nb::handle after) {
  tensor what = settled(x, false, after);
  return request_of(self, what, link_of(self).isend(peer, memory_of(what), tag));
}

std::unique_ptr<request> irecv(self_t self, int source, nb::handle x, std::uint64_t tag, std::uint64_t mask,
                               nb::handle after) {
  tensor what = settled(x, true, after);
  return request_of(self, what, link_of(self).irecv(source, memory_of(what), tag, mask));
}

void send(self_t self, int peer, nb::handle x, std::uint64_t tag, nb::handle timeout, nb::handle after) {
  const tensor what = settled(x, false, after);
  const auto limit = limit_of(timeout);
  const auto& link = link_of(self);
  const nb::gil_scoped_release waiting;
  must(link.send(peer, memory_of(what), tag, limit));
}

told_message receive(self_t self, int source, nb::handle x, std::uint64_t tag, std::uint64_t mask, nb::handle timeout,
                     nb::handle after) {
  const tensor what = settled(x, true, after);
  const auto limit = limit_of(timeout);
  const auto& link = link_of(self);
  const auto info = [&] {
    const nb::gil_scoped_release waiting;
    return value_of(link.recv(source, memory_of(what), tag, mask, limit));
  }();
  return {info.source, info.tag, info.bytes};
}

std::unique_ptr<request> put(self_t self, const nb::bytes& key, std::uint64_t offset, nb::handle x, nb::handle after) {
  tensor what = settled(x, false, after);
  return request_of(self, what, link_of(self).put(key_of(key), offset, memory_of(what)));
}

std::unique_ptr<request> get(self_t self, const nb::bytes& key, std::uint64_t offset, nb::handle x, nb::handle after) {
  tensor what = settled(x, true, after);
  return request_of(self, what, link_of(self).get(key_of(key), offset, memory_of(what)));
}

std::uint64_t fetch_add(self_t self, const nb::bytes& key, std::uint64_t offset, std::uint64_t operand) {
  const auto where = key_of(key);
  const auto& link = link_of(self);
  const nb::gil_scoped_release waiting;
  return value_of(link.fetch_add(where, offset, operand));
}

std::unique_ptr<window> expose(self_t self, nb::handle x) {
  tensor what = describe(x);
  must_be_one_run(what, true);
  auto made = value_of(link_of(self).expose(memory_of(what)));
  return std::make_unique<window>(nb::borrow(self), std::move(what.owner), std::move(made));
}

void barrier(self_t self, nb::handle timeout) {
  const auto limit = limit_of(timeout);
  const auto& link = link_of(self);
  const nb::gil_scoped_release waiting;
  must(link.barrier(limit));
}

nb::typed<nb::list, nb::bytes> all_gather(self_t self, const nb::bytes& mine) {
  const auto& link = link_of(self);
  const auto bytes = mine.size();
  std::string all(bytes * static_cast<std::size_t>(link.size()), '\0');
  {
    const nb::gil_scoped_release waiting;
    if (const int code = peerlane_link_all_gather(link.get(), mine.c_str(), bytes, all.data()))
      throw error(code, peerlane_last_error());
  }
  nb::list out;
  for (int rank = 0; rank < link.size(); ++rank)
    out.append(nb::bytes(all.data() + static_cast<std::size_t>(rank) * bytes, bytes));
  return out;
}

nb::typed<nb::dict, nb::str, int> statistics(self_t self) {
  const auto told = value_of(link_of(self).statistics());
  nb::dict out;
  out["eager"] = told.eager;
  out["self"] = told.self;
  out["shared_ring"] = told.shared_ring;
  out["network_ring"] = told.network_ring;
  out["ipc"] = told.ipc;
  out["ucx_direct"] = told.ucx_direct;
  out["unexpected"] = told.unexpected;
  out["waiting_sends"] = told.waiting_sends;
  out["operations"] = told.operations;
  return out;
}

}  // namespace

void bind_messages(nb::module_& module) {
  module.attr("ANY_SOURCE") = peerlane::any_source;
  module.attr("WHOLE_TAG") = peerlane::whole_tag;
  nb::class_<request>(module, "Request",
                      "A message, put or get under way; `await` it or wait(). Keeps its tensor. Dropping it cancels.")
      .def("done", &request::done, "Makes progress once. True: it has ended; wait() then tells how.")
      .def("wait", &request::wait, nb::arg("timeout").none() = nb::none(),
           "(source, tag, bytes) of the message. Seconds; Timeout leaves it under way.")
      .def("cancel", &request::cancel, "Error with EBUSY where it is too late.")
      .def(
          "__await__",
          [](nb::object self) { return nb::object(nb::module_::import_("peerlane._waiting").attr("while_polled")(self)); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"));
  nb::class_<window>(module, "Window", "Memory that other processes may put to and get from, until it is closed or dropped.")
      .def_prop_ro("key", &window::key, "Bytes for the others: send them by any way.")
      .def("close", &window::close, "Peers reach the memory no longer. Any number of times.");
  const auto any = nb::arg("after").none() = "auto";
  nb::class_<messenger>(module, "Messenger", nb::is_weak_referenceable(), "What peerlane.messages.open() returns.")
      .def(nb::init<const std::string&, int, int, bool, double>(), nb::arg("rendezvous"), nb::arg("rank"), nb::arg("size"),
           nb::arg("host_only"), nb::arg("open_timeout"))
      .def("close", &messenger::close, "Leaves the job; what is under way ends with an error. Any number of times.")
      .def_prop_ro(
          "rank", [](self_t self) { return link_of(self).rank(); }, "This process, from 0.")
      .def_prop_ro(
          "size", [](self_t self) { return link_of(self).size(); }, "Processes of the job.")
      .def("send", &send, nb::arg("peer"), nb::arg("x"), nb::arg("tag") = 0, nb::kw_only(),
           nb::arg("timeout").none() = nb::none(), any,
           "One contiguous tensor, of the GPU or the host. Returns once it may be written again.")
      .def("recv", &receive, nb::arg("source"), nb::arg("x"), nb::arg("tag") = 0, nb::arg("mask") = peerlane::whole_tag,
           nb::kw_only(), nb::arg("timeout").none() = nb::none(), any,
           "Into the tensor; (source, tag, bytes). GPU work launched afterwards sees the data.")
      .def("isend", &isend, nb::arg("peer"), nb::arg("x"), nb::arg("tag") = 0, nb::kw_only(), any,
           "Begins a send. The request keeps the tensor, which must not be written until it has ended.")
      .def("irecv", &irecv, nb::arg("source"), nb::arg("x"), nb::arg("tag") = 0, nb::arg("mask") = peerlane::whole_tag,
           nb::kw_only(), any, "Begins a receive. The tensor must not be touched until the request has ended.")
      .def("expose", &expose, nb::arg("x"),
           "Lets peers put to and get from the tensor, which the window keeps. Its key goes to them.")
      .def("put", &put, nb::arg("key"), nb::arg("offset"), nb::arg("x"), nb::kw_only(), any,
           "Writes the tensor into a peer's window; over there once the request has ended.")
      .def("get", &get, nb::arg("key"), nb::arg("offset"), nb::arg("x"), nb::kw_only(), any,
           "Fills the tensor from a peer's window, from byte `offset` on.")
      .def("fetch_add", &fetch_add, nb::arg("key"), nb::arg("offset"), nb::arg("operand"),
           "Adds to an aligned 64-bit word of a window; its old value.")
      .def("barrier", &barrier, nb::arg("timeout").none() = nb::none(), "Returns once every process has come here. Seconds.")
      .def("all_gather", &all_gather, nb::arg("mine"),
           "The bytes of every rank, by rank; all of one length. For setting up.")
      .def(
          "progress", [](self_t self) { return value_of(link_of(self).progress()); },
          "Advances everything once; true: something moved.")
      .def(
          "peer_is_alive", [](self_t self, int peer) { return link_of(self).peer_state(peer).code() == 0; }, nb::arg("peer"),
          "Whether nothing says that the process has ended.")
      .def(
          "plan", [](self_t self, int peer) { return value_of(link_of(self).plan(peer)); }, nb::arg("peer"),
          "Which way messages take, from which size; lines for people.")
      .def("statistics", &statistics, "Messages sent, by way.");
}

}  // namespace pl::py
