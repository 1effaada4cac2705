// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <peerlane/copy.hpp>
#include <vector>

#include "device_span.hpp"
#include "gil.hpp"
#include "raise.hpp"
#include "stream_order.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

// Calls a Python function once, with 0 or the errno value, on any thread. Exceptions are reported as unraisable.
struct python_function {
  PyObject* function;
  void operator()(const peerlane::op_info& info) const noexcept {
    interpreter_end::before([&] {
      const nb::object owned = nb::steal(function);
      try {
        owned(info.error);
      } catch (nb::python_error& raised) {
        raised.restore();
        PyErr_WriteUnraisable(owned.ptr());
      }
    });
  }
};

std::vector<operation*> operations_from(nb::list list, const char* role) {
  std::vector<operation*> out;
  for (nb::handle each : list) {
    if (!nb::isinstance<operation>(each))
      throw nb::type_error((std::string(role) + ": expected an operation, got " + class_name(each)).c_str());
    out.push_back(nb::inst_ptr<operation>(each));
  }
  return out;
}

bool is_past(std::chrono::steady_clock::time_point begin, std::chrono::milliseconds limit) {
  return limit >= limit.zero() && std::chrono::steady_clock::now() - begin >= limit;
}

nb::typed<nb::list, nb::typed<nb::tuple, int, int, int>> wait_all(nb::list list, nb::handle timeout) {
  const auto all = operations_from(list, "wait_all");
  const auto limit = limit_of(timeout);
  const auto begin = std::chrono::steady_clock::now();
  bool have_ended = false;
  wait_until([&] {
    have_ended = true;
    for (auto* const one : all) have_ended = (one->has_ended() || one->poll()) && have_ended;
    return have_ended || is_past(begin, limit);
  });
  if (!have_ended) throw error(ETIMEDOUT, "not all of the operations have ended yet; the others go on");
  nb::list out;
  for (auto* const one : all) out.append(one->outcome());
  return out;
}

std::size_t wait_any(nb::list list, nb::handle timeout) {
  const auto all = operations_from(list, "wait_any");
  const auto limit = limit_of(timeout);
  const auto begin = std::chrono::steady_clock::now();
  if (all.empty()) throw nb::value_error("wait_any: give one operation at least");
  auto found = all.end();
  wait_until([&] {
    found = std::find_if(all.begin(), all.end(), [](operation* one) { return one->has_ended() || one->poll(); });
    return found != all.end() || is_past(begin, limit);
  });
  if (found == all.end()) throw error(ETIMEDOUT, "none of the operations has ended yet; they go on");
  return static_cast<std::size_t>(found - all.begin());
}

nb::object waiting_module() { return nb::module_::import_("peerlane._waiting"); }

}  // namespace

void throw_failed(const peerlane::failure& reason, const peerlane::op_info& info) {
  if (reason.code != EMSGSIZE) throw error(reason);
  nb::object thrown = nb::module_::import_("peerlane._errors").attr("Error")(reason.code, text_of_message(reason.message));
  thrown.attr("source") = info.source;
  thrown.attr("tag") = info.tag;
  thrown.attr("size_bytes") = info.size_bytes;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(thrown.ptr())), thrown.ptr());
  throw nb::python_error();
}

peerlane::result<peerlane::op_info> wait_for_end(peerlane::operation& operation, std::chrono::milliseconds limit,
                                                 peerlane::op_info& info, call_gate* gate) {
  peerlane::result<peerlane::op_info> outcome = peerlane::op_info{};
  (void)wait_in_slices(limit, [&](std::chrono::milliseconds slice) {
    const call_gate::entry inside(gate);
    if (!inside) return outcome = owner_closed(), (void)operation.give_up(), true;
    outcome = operation.wait(slice, &info);
    return outcome || operation.is_empty() || outcome.error().code != ETIMEDOUT;
  });
  return outcome;
}

// Call it before the mutex is locked: in a forked child, the thread that holds it may be missing.
void operation::check_process() const {
  if (process_ != process_number() && !has_ended())
    throw error(EACCES, "the operation belongs to the parent process, where it continues: a child of fork begins its own");
}

// Under the mutex.
void operation::keep(const peerlane::result<peerlane::op_info>& outcome, const peerlane::op_info& info) {
  info_ = info;
  if (!outcome) failed_ = outcome.error();
  has_ended_.store(true, std::memory_order_release);
}

// Called with the mutex held, after the owner was closed, which ended the operation.
void operation::keep_closed() {
  (void)begun_.give_up();
  peerlane::op_info info{};
  info.error = ECANCELED, info.source = -1;
  keep(owner_closed(), info);
}

bool operation::poll() {
  if (has_ended()) return true;
  check_process();
  const std::unique_lock alone(mutex_, std::try_to_lock);
  if (!alone.owns_lock() || has_ended()) return has_ended();
  const call_gate::entry inside(gate_.get());
  if (!inside) return keep_closed(), true;
  peerlane::op_info info{};
  const auto state = begun_.test(&info);
  if (!state) keep(state.error(), info);
  else if (*state) keep(info, info);
  return has_ended();
}

bool operation::done() {
  if (has_ended()) return true;
  const gil_release waiting;  // progress may copy data
  return poll();
}

op_info operation::outcome() {
  owner_ = first_ = second_ = nb::none();
  if (failed_) throw_failed(*failed_, info_);
  return {info_.source, info_.tag, info_.size_bytes};
}

op_info operation::wait(nb::handle timeout) {
  const auto limit = limit_of(timeout);
  const auto begin = std::chrono::steady_clock::now();
  check_process();
  if (!has_ended())
    (void)wait_in_slices(limit, [&](std::chrono::milliseconds slice) {
      const std::lock_guard alone(mutex_);
      if (has_ended()) return true;
      const call_gate::entry inside(gate_.get());
      if (!inside) return keep_closed(), true;
      peerlane::op_info info{};
      const auto outcome = begun_.wait(slice, &info);
      if (!outcome && outcome.error().code == ETIMEDOUT && !begun_.is_empty()) return is_past(begin, limit);
      keep(outcome, info);
      return true;
    });
  if (!has_ended()) throw error(ETIMEDOUT, "the operation has not ended yet; it goes on");
  return outcome();
}

nb::object operation::info() const {
  if (!has_ended()) return nb::none();
  nb::dict out;
  out["error"] = info_.error;
  out["source"] = info_.source;
  out["tag"] = info_.tag;
  out["size_bytes"] = info_.size_bytes;
  out["moved_bytes"] = info_.moved_bytes;
  out["version"] = info_.version;
  out["path"] = info_.path;
  out["durability"] = info_.durability;
  out["crc32c"] = info_.crc32c;
  out["user_flags"] = info_.user_flags;
  return out;
}

void operation::cancel() {
  if (has_ended()) return;
  check_process();
  const auto outcome = [&] {
    const gil_release waiting;
    const std::lock_guard alone(mutex_);
    const call_gate::entry inside(gate_.get());
    return inside ? begun_.cancel() : peerlane::status{};  // the owner was closed, which ended it
  }();
  must(outcome);
}

void operation::then(nb::object function) {
  if (PyCallable_Check(function.ptr()) == 0) throw nb::type_error("then: give a function of one argument, the errno value");
  check_process();
  PyObject* const kept = function.release().ptr();  // python_function releases it
  const auto outcome = [&]() -> peerlane::status {
    const gil_release waiting;
    const std::lock_guard alone(mutex_);
    const call_gate::entry inside(gate_.get());
    if (!inside && !has_ended()) keep_closed();
    if (!has_ended()) return begun_.then(python_function{kept});
    python_function{kept}(info_);
    return {};
  }();
  if (!outcome) {
    nb::steal(kept).reset();
    throw error(outcome.error());
  }
}

void operation::make_wait(nb::handle stream) {
  check_process();
  auto* const handle = stream_of(stream);
  const gil_release waiting;  // waits for copies that need a CPU
  const std::lock_guard alone(mutex_);
  must(peerlane::make_wait(begun_, handle));
}

void operation::record(nb::handle event) {
  check_process();
  const nb::object number = nb::hasattr(event, "cuda_event") ? event.attr("cuda_event")
                            : nb::hasattr(event, "ptr")      ? event.attr("ptr")
                                                             : nb::borrow(event);
  auto* const handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(unsigned_integer(number, "the event")));
  const gil_release waiting;
  const std::lock_guard alone(mutex_);
  must(peerlane::record(begun_, handle));
}

int operation::descriptor() {
  check_process();
  const gil_release waiting;  // the thread with the mutex may call a function that needs the GIL
  const std::lock_guard alone(mutex_);
  if (has_ended()) throw error(EINVAL, "the operation has ended: there is nothing to sleep for");
  return value_of(peerlane::descriptor(begun_));
}

void bind_operations(nb::module_& module) {
  nb::class_<operation>(
      module, "Operation", nb::dynamic_attr(),
      nb::sig("class Operation(typing.Coroutine[typing.Any, typing.Any, tuple[int, int, int]], metaclass=abc.ABCMeta)"),
      "An operation that continues after its call: a copy, a message, a put or a get. Use `await`, wait(), or test it with "
      "done().\nIt is also a coroutine, so asyncio.create_task() accepts it. It keeps its tensors. Deleting it waits for a "
      "copy or a store's\nrequest, and cancels a message.")
      .def("done", &operation::done, "Makes progress once. True: the operation has ended; wait() then returns the outcome.")
      .def("wait", &operation::wait, nb::arg("timeout").none() = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> tuple[int, int, int]"),
           "Waits for the end and returns (source, tag, size_bytes), for a copy (-1, 0, size_bytes). It raises the "
           "operation's error.\nThe limit is in seconds; after Timeout the operation continues.")
      .def("cancel", &operation::cancel,
           "Cancels the operation. Error with EBUSY: it is too late, or the operation is a copy.")
      .def("then", &operation::then, nb::arg("function"),
           nb::sig("def then(self, function: collections.abc.Callable[[int], object]) -> None"),
           "Calls function(errno value; 0: success) once when the operation has ended, from any thread; at once if it has "
           "already ended.\nThe function must not block. A second function is an Error with EEXIST.")
      .def("make_wait", &operation::make_wait, nb::arg("stream").none(),
           nb::sig("def make_wait(self, stream: peerlane._types.Stream) -> None"),
           "For copies: the CUDA stream waits for them on the GPU. The call blocks only for copies that need a CPU.")
      .def("record", &operation::record, nb::arg("event"), "For copies: records the CUDA event after them.")
      .def("descriptor", &operation::descriptor,
           "For copies: returns a descriptor for poll, epoll and event loops. It is readable when the copy may have ended; "
           "check with\ndone(). It is closed at the copy's end, so register a duplicate. `await` does all this.")
      .def("info", &operation::info, nb::sig("def info(self) -> peerlane._types.OperationInfo | None"),
           "Returns the details of an operation that has ended; None while it is in progress.")
      .def_prop_ro(
          "can_cancel", &operation::can_cancel,
          "Whether cancel() works: only for messages. Copies, collectives and a store's requests continue to their end.")
      .def_prop_ro("has_descriptor", &operation::has_descriptor, "Whether descriptor() works: only for copies.")
      .def(
          "__await__", [](nb::object self) { return waiting_module().attr("steps")(self); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, tuple[int, int, int]]"))
      .def(
          "send", [](nb::object self, nb::object value) { return waiting_module().attr("send")(self, value); },
          nb::arg("value").none(), nb::sig("def send(self, value: typing.Any) -> typing.Any"), "For the event loop.")
      .def(
          "throw", [](nb::object self, nb::args exception) { return waiting_module().attr("throw")(self, *exception); },
          nb::sig("def throw(self, *exception: typing.Any) -> typing.Any"), "For the event loop.")
      .def(
          "close", [](nb::object self) { waiting_module().attr("close")(self); }, nb::sig("def close(self) -> None"),
          "For the event loop; a copy continues.")
      .def("__repr__", [](operation& self) {
        const char* const state = self.done() ? "done" : "under way";
        return nb::str(("<peerlane.Operation " + std::string(state) + ">").c_str());
      });
  module.def("wait_all", &wait_all, nb::arg("operations"), nb::arg("timeout").none());
  module.def("wait_any", &wait_any, nb::arg("operations"), nb::arg("timeout").none());
}

}  // namespace pl::py
