// SPDX-License-Identifier: Apache-2.0
#include "copies.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "device_span.hpp"
#include "error.hpp"
#include "stream_order.hpp"
#include "transfers.hpp"

namespace pl::py {
namespace {

// The end of an asynchronous copy. Keeps both tensors. Dropping it waits.
class pending_copy {
 public:
  pending_copy(peerlane::completion end, nb::object dst, nb::object src)
      : dst_(std::move(dst)), src_(std::move(src)), end_(std::move(end)) {}
  ~pending_copy() {
    const nb::gil_scoped_release waiting;
    end_.reset();
  }
  pending_copy(const pending_copy&) = delete;
  pending_copy& operator=(const pending_copy&) = delete;

  bool done() const { return value_of(end_.test()); }
  void wait() const {
    const nb::gil_scoped_release waiting;
    must(end_.wait());
  }
  void make_wait(nb::handle stream) const {
    auto* const handle = stream_of(stream);
    const nb::gil_scoped_release waiting;  // copies that need a CPU are waited for
    must(end_.make_wait(handle));
  }
  void record(nb::handle event) const {
    const nb::object number = nb::hasattr(event, "cuda_event") ? event.attr("cuda_event")
                              : nb::hasattr(event, "ptr")      ? event.attr("ptr")
                                                               : nb::borrow(event);
    auto* const handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(nb::cast<std::uint64_t>(number)));
    const nb::gil_scoped_release waiting;
    must(end_.record(handle));
  }

 private:
  nb::object dst_, src_;
  peerlane::completion end_;
};

std::string told(const tensor& what) {
  std::string shape;
  for (const auto extent : what.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
  return name_of(what.type) + "[" + shape + "]";
}

void must_fit(const tensor& dst, const tensor& src) {
  if (!dst.is_writable) throw nb::value_error("copy: the destination is read-only");
  if (dst.shape != src.shape || !dst.type.fits(src.type))
    throw nb::value_error(
        ("copy: the destination is " + told(dst) + ", the source " + told(src) + ": both must have one shape and one dtype")
            .c_str());
}

peerlane::status run(std::span<const peerlane_transfer> list) {
  const auto& by = shared_copier();
  if (list.size() != 1 || list[0].rows != 1) return by.copy_list(list);
  const auto& one = list[0];
  if (one.direction == PEERLANE_TO_DEVICE)
    return by.to_device(one.dst, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(one.src)), one.row_bytes);
  if (one.direction == PEERLANE_TO_HOST)
    return by.to_host(reinterpret_cast<void*>(static_cast<std::uintptr_t>(one.dst)), one.src, one.row_bytes);
  return by.on_device(one.dst, one.src, one.row_bytes);
}

// False: both lie in host memory, which is NumPy's business.
bool copy(nb::handle dst, nb::handle src, nb::handle after) {
  const tensor to = describe(dst), from = describe(src);
  must_fit(to, from);
  if (to.where == place::host && from.where == place::host) return false;
  const auto list = transfers_between(to, from);
  wait_for(busy_streams(after, std::array{&to, &from}));
  if (list.empty()) return true;
  const nb::gil_scoped_release waiting;
  must(run(list));
  return true;
}

std::unique_ptr<pending_copy> begin_copy(nb::handle dst, nb::handle src, nb::handle after) {
  tensor to = describe(dst), from = describe(src);
  must_fit(to, from);
  if (to.where == place::host && from.where == place::host)
    throw nb::value_error("copy_async: both sides lie in host memory: use NumPy");
  const auto list = transfers_between(to, from);
  const auto busy = busy_streams(after, std::array{&to, &from});
  if (busy.size() > 1) wait_for(std::span(busy).subspan(1));  // a copy can wait for one stream
  peerlane::completion end;
  if (!list.empty()) {
    const nb::gil_scoped_release waiting;
    const auto& by = shared_copier();
    end = value_of(busy.empty() ? by.begin(list) : by.begin_after(busy[0], list));
  }
  return std::make_unique<pending_copy>(std::move(end), std::move(to.owner), std::move(from.owner));
}

// Nothing: done. Else the bytes of one element, for the caller to fill by copies.
std::optional<nb::bytes> fill_bytes(nb::handle dst, nb::handle value, nb::handle after) {
  const tensor to = describe(dst);
  if (!to.is_writable) throw nb::value_error("fill: the destination is read-only");
  if (to.type.bytes > kLargestScalar)
    throw nb::type_error(("fill: elements of " + name_of(to.type) + " have no one value").c_str());
  std::array<char, kLargestScalar> bytes{};
  if (!encode(to.type, value.ptr(), bytes.data())) throw nb::python_error();
  bool is_one_byte = true;
  for (std::uint32_t i = 1; i < to.type.bytes; ++i) is_one_byte = is_one_byte && bytes[i] == bytes[0];
  if (to.where == place::device) wait_for(busy_streams(after, std::array{&to}));
  if (!is_one_byte || to.where == place::host || !to.is_contiguous()) return nb::bytes(bytes.data(), to.type.bytes);
  if (to.elements() == 0) return std::nullopt;
  const nb::gil_scoped_release waiting;
  must(shared_copier().fill(to.address, std::byte(bytes[0]), to.bytes()));
  return std::nullopt;
}

// (where, dtype name, shape, bytes, address, whether contiguous) of anything that copies take.
nb::typed<nb::tuple, nb::str, nb::str, nb::typed<nb::tuple, int, nb::ellipsis>, int, int, bool> look_at(nb::handle object) {
  const tensor what = describe(object);
  nb::list shape;
  for (const auto extent : what.shape) shape.append(extent);
  return nb::make_tuple(what.where == place::device ? "device" : "host", name_of(what.type), nb::tuple(shape), what.bytes(),
                        what.address, what.is_contiguous());
}

// (address, bytes) of one run of memory, once what `after` names is over.
nb::typed<nb::tuple, int, int> one_run(nb::handle object, bool is_written, nb::handle after) {
  const tensor what = describe(object);
  must_be_one_run(what, is_written);
  wait_for(busy_streams(after, std::array{&what}));
  return nb::make_tuple(what.address, what.bytes());
}

std::string explain(const std::string& way, std::uint64_t bytes, bool pageable) {
  const auto direction = way == "to_device" ? PEERLANE_TO_DEVICE : way == "to_host" ? PEERLANE_TO_HOST : PEERLANE_ON_DEVICE;
  if (direction == PEERLANE_ON_DEVICE && way != "on_device")
    throw nb::value_error("direction is \"to_device\", \"to_host\" or \"on_device\"");
  return value_of(shared_copier().explain(direction, pageable, bytes));
}

}  // namespace

const peerlane::copier& shared_copier() {
  static std::mutex mutex;
  static auto* const kept = new peerlane::copier;  // never closed: completions may outlive static objects
  const std::lock_guard lock(mutex);
  if (kept->get() == nullptr) *kept = value_of(peerlane::copier::open());
  return *kept;
}

void bind_copies(nb::module_& module) {
  nb::class_<pending_copy>(module, "Completion",
                           "The end of an asynchronous copy; `await` it, or wait(). Keeps both tensors. Dropping it waits.")
      .def("done", &pending_copy::done, "True: over. A failure is raised once and ends it.")
      .def("wait", &pending_copy::wait, "This thread waits, others run. Raises what went wrong.")
      .def("make_wait", &pending_copy::make_wait, nb::arg("stream").none(),
           "The CUDA stream waits on the GPU for the copies; nothing blocks here but copies that need a CPU.")
      .def("record", &pending_copy::record, nb::arg("event"), "Records the CUDA event behind the copies.")
      .def(
          "__await__",
          [](nb::object self) { return nb::object(nb::module_::import_("peerlane._waiting").attr("until_done")(self)); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"));
  module.def("copy", &copy, nb::arg("dst"), nb::arg("src"), nb::arg("after").none());
  module.def("copy_async", &begin_copy, nb::arg("dst"), nb::arg("src"), nb::arg("after").none());
  module.def("fill_bytes", &fill_bytes, nb::arg("dst"), nb::arg("value"), nb::arg("after").none());
  module.def("one_run", &one_run, nb::arg("x"), nb::arg("is_written"), nb::arg("after").none());
  module.def("look_at", &look_at, nb::arg("x"));
  module.def("explain", &explain, nb::arg("direction"), nb::arg("nbytes"), nb::arg("pageable"));
}

}  // namespace pl::py
