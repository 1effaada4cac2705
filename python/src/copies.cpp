// SPDX-License-Identifier: Apache-2.0
#include "copies.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "call.hpp"
#include "device_span.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "operation.hpp"
#include "stream_order.hpp"
#include "torch.hpp"
#include "transfers.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

std::string shape_text(const tensor& view) {
  std::string shape;
  for (const auto extent : view.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
  return name_of(view.type) + "[" + shape + "]";
}

void must_fit(const tensor& dst, const tensor& src) {
  if (!dst.is_writable) throw nb::value_error("copy: the destination is read-only");
  if (dst.shape != src.shape || !dst.type.fits(src.type))
    throw nb::value_error(("copy: the destination is " + shape_text(dst) + ", the source " + shape_text(src) +
                           ": both must have one shape and one dtype")
                              .c_str());
}

// The usual case: two contiguous ranges. It needs no list of transfers, so a call from Python allocates nothing.
bool is_one_run(const tensor& destination, const tensor& source) {
  return destination.is_contiguous() && source.is_contiguous();
}

void copy_one_run(const tensor& destination, const tensor& source) {
  const std::uint64_t bytes = destination.bytes();
  if (bytes == 0) return;
  const gil_release waiting;
  must(shared_copier().copy(buffer_over(destination, destination.address, bytes),
                            buffer_over(source, source.address, bytes)));
}

// False: both are in host memory, so NumPy must copy them.
bool copy(nb::handle dst, nb::handle src, nb::handle after) {
  const tensor destination = describe(dst, "copy: the destination"), source = describe(src, "copy: the source");
  must_fit(destination, source);
  if (destination.location == place::host && source.location == place::host) return false;
  const bool is_simple = is_one_run(destination, source);
  const auto list = is_simple ? std::vector<peerlane::transfer>{} : transfers_between(destination, source);
  wait_for(busy_streams(after, std::array{&destination, &source}));
  if (is_simple) return copy_one_run(destination, source), true;
  if (list.empty()) return true;
  const gil_release waiting;
  must(shared_copier().copy_list(list));
  return true;
}

// Both are in host memory: NumPy supports every stride and type there.
void copy_by_numpy(nb::handle dst, nb::handle src) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  numpy.attr("copyto")(numpy.attr("asarray")(dst), numpy.attr("asarray")(src));
}

struct copy_arguments {
  nb::handle dst, src, after;
};

// copy(dst, src, *, after="auto"); dst and src may also be given by name.
copy_arguments parse_copy(PyObject* const* given, Py_ssize_t count, PyObject* names) {
  constexpr const char* kWords[] = {"dst", "src", "after"};
  static PyObject* const automatic = PyUnicode_InternFromString("auto");  // never released
  if (count > 2) throw nb::type_error("copy() takes 2 positional arguments: the destination and the source");
  nb::handle found[3] = {count > 0 ? given[0] : nullptr, count > 1 ? given[1] : nullptr, automatic};
  const Py_ssize_t named = names != nullptr ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GetItem(names, i);
    const auto* const word = std::find_if(std::begin(kWords), std::end(kWords), [&](const char* each) {
      return PyUnicode_CompareWithASCIIString(name, each) == 0;
    });
    const auto index = word - std::begin(kWords);
    if (index == 3) throw nb::type_error(("copy() got an unexpected keyword argument '" + text_of(name) + "'").c_str());
    if (index < count) throw nb::type_error(("copy() got multiple values for argument '" + text_of(name) + "'").c_str());
    found[index] = given[count + i];
  }
  for (int i = 0; i < 2; ++i)
    if (!found[i].is_valid())
      throw nb::type_error(("copy() missing required argument '" + std::string(kWords[i]) + "'").c_str());
  return {found[0], found[1], found[2]};
}

// peerlane.copy as a plain C function: a call through nanobind takes 0.1 us longer, and a Python function 0.3 us.
PyObject* call_copy(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_guarded(
      [&]() -> PyObject* {
        const auto [dst, src, after] = parse_copy(given, count, names);
        if (!copy(dst, src, after)) copy_by_numpy(dst, src);
        return nb::none().release().ptr();
      },
      static_cast<PyObject*>(nullptr));
}

PyMethodDef g_copy = {"copy", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_copy)),
                      METH_FASTCALL | METH_KEYWORDS,
                      R"(copy($module, /, dst, src, *, after='auto')
--

Copies `src` to `dst`, which has the same shape and dtype, by the fastest method; complete on return.

Each may be a NumPy array, a PyTorch, CuPy, Numba or JAX array, a Mapping, or (device pointer, bytes). `after`: "auto" waits
for the work that the tensors' libraries have queued on their current streams, None for nothing (the fastest), a stream for
that stream. GPU work launched afterwards sees the data. Other Python threads can run during the call. Error with EBUSY: the
stream is being captured into a graph; CUDA is not used then.)"};

std::unique_ptr<operation> copy_async(nb::handle dst, nb::handle src, nb::handle after) {
  tensor destination = describe(dst, "copy_async: the destination"), source = describe(src, "copy_async: the source");
  must_fit(destination, source);
  if (destination.location == place::host && source.location == place::host)
    throw nb::value_error("copy_async: both sides lie in host memory: use NumPy");
  const auto list = transfers_between(destination, source);
  const auto busy = busy_streams(after, std::array{&destination, &source});
  // The copy itself can wait for one stream only.
  if (busy.size() > 1) wait_for(std::span(busy).subspan(1));
  nb::object first = keep_alive_of(dst, destination), second = keep_alive_of(src, source);
  auto begun = [&] {
    const gil_release waiting;
    const auto& copier = shared_copier();
    if (list.empty()) return peerlane::operation();
    return value_of(busy.empty() ? copier.begin(list) : copier.begin_after(busy[0], list));
  }();
  return std::make_unique<operation>(std::move(begun), nb::none(), std::move(first), std::move(second),
                                     operation::kind::copy);
}

// None: done. Otherwise the bytes of one element, which the caller must copy to all elements.
std::optional<nb::bytes> fill_bytes(nb::handle dst, nb::handle value, nb::handle after) {
  const tensor destination = describe(dst, "fill");
  if (!destination.is_writable) throw nb::value_error("fill: the destination is read-only");
  if (destination.type.bytes > kLargestScalar)
    throw nb::type_error(("fill: elements of " + name_of(destination.type) + " have no one value").c_str());
  std::array<char, kLargestScalar> bytes{};
  if (!encode(destination.type, value.ptr(), bytes.data())) throw nb::python_error();
  bool is_one_byte = true;
  for (std::uint32_t i = 1; i < destination.type.bytes; ++i) is_one_byte = is_one_byte && bytes[i] == bytes[0];
  if (destination.location == place::device) wait_for(busy_streams(after, std::array{&destination}));
  if (!is_one_byte || destination.location == place::host || !destination.is_contiguous())
    return nb::bytes(bytes.data(), destination.type.bytes);
  if (destination.elements() == 0) return std::nullopt;
  const gil_release waiting;
  must(shared_copier().fill(peerlane::device_buffer(destination.address, destination.bytes()), std::byte(bytes[0])));
  return std::nullopt;
}

// Returns ("host" or "device", dtype name, shape, bytes, address, whether contiguous) of an argument of copy().
nb::typed<nb::tuple, nb::str, nb::str, nb::typed<nb::tuple, int, nb::ellipsis>, int, int, bool> describe_tensor(
    nb::handle object) {
  const tensor view = describe(object, "the tensor");
  nb::list shape;
  for (const auto extent : view.shape) shape.append(extent);
  return nb::make_tuple(view.location == place::device ? "device" : "host", name_of(view.type), nb::tuple(shape),
                        view.bytes(), view.address, view.is_contiguous());
}

// Returns the address, the size in bytes and the owner of a contiguous tensor, after the work that produces it has ended.
nb::typed<nb::tuple, int, int, nb::object> one_run(nb::handle object, bool is_written, nb::handle after) {
  tensor view = describe(object, "the tensor");
  must_be_one_run(view, is_written);
  wait_for(busy_streams(after, std::array{static_cast<const tensor*>(&view)}));
  return nb::make_tuple(view.address, view.bytes(), keep_alive_of(object, view));
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
  static std::atomic<const peerlane::copier*> kept{nullptr};  // never closed: operations may outlive static objects
  if (const auto* const found = kept.load(std::memory_order_acquire)) return *found;
  const std::lock_guard lock(mutex);
  if (kept.load(std::memory_order_relaxed) == nullptr)
    kept.store(new peerlane::copier(value_of(peerlane::copier::open())), std::memory_order_release);
  return *kept.load(std::memory_order_relaxed);
}

void bind_copies(nb::module_& module) {
  module.def("copy_async", &copy_async, nb::arg("dst").none(), nb::arg("src").none(), nb::arg("after").none());
  module.attr("copy") = nb::steal(PyCFunction_NewEx(&g_copy, nullptr, nullptr));
  module.def("fill_bytes", &fill_bytes, nb::arg("dst").none(), nb::arg("value").none(), nb::arg("after").none());
  module.def("one_run", &one_run, nb::arg("x").none(), nb::arg("is_written"), nb::arg("after").none());
  module.def("look_at", &describe_tensor, nb::arg("x").none());
  module.def("explain", &explain, nb::arg("direction"), nb::arg("size_bytes"), nb::arg("pageable"));
}

}  // namespace pl::py
