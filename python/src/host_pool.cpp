// SPDX-License-Identifier: Apache-2.0
#include "host_pool.hpp"

#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>
#include <peerlane/host_pool.hpp>
#include <string>

#include "call.hpp"
#include "copies.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "process.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

// The memory lives as long as a view of it: Python keeps the exporter of a buffer alive, and close() counts the views. The
// GIL guards all fields.
class host_pool {
 public:
  host_pool(std::uint64_t size_bytes, int device, std::uint64_t piece_bytes) {
    const gil_release waiting;
    pool_ = value_of(peerlane::host_pool::open(size_bytes, device, piece_bytes, shared_copier().get()));
  }
  ~host_pool() {
    const gil_release waiting;
    pool_.reset();
  }
  host_pool(const host_pool&) = delete;
  host_pool& operator=(const host_pool&) = delete;

  peerlane_host_pool_info info() const {
    if (process_ != process_number())
      throw error(EACCES, "the host pool belongs to the parent process: a child of fork makes its own");
    if (pool_.get() == nullptr) throw nb::value_error("the host pool is closed");
    return value_of(pool_.info());
  }

  void wait(std::optional<double> timeout) const {
    (void)info();
    const std::int64_t timeout_ms = timeout ? static_cast<std::int64_t>(std::ceil(std::max(0.0, *timeout) * 1e3)) : -1;
    constexpr std::int64_t kSliceMs = 100;  // between two checks for signals
    for (std::int64_t waited = 0;; waited += kSliceMs) {
      const std::int64_t some = timeout_ms < 0 ? kSliceMs : std::min(kSliceMs, timeout_ms - waited);
      const auto ended = [&] {
        const gil_release waiting;
        return pool_.wait(some);
      }();
      if (ended) return;
      if (ended.code() != ETIMEDOUT || (timeout_ms >= 0 && waited + some >= timeout_ms)) throw error(ended.error());
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      (void)info();  // throws if another thread has closed the pool meanwhile
    }
  }

  void close() {
    if (pool_.get() == nullptr) return;
    if (process_ != process_number()) return;
    if (views_ != 0)
      throw nb::buffer_error(("the host pool has " + std::to_string(views_) +
                              " views (arrays, tensors, memoryviews): let them go before it is closed")
                                 .c_str());
    const gil_release waiting;
    pool_.reset();
  }
  bool is_closed() const { return pool_.get() == nullptr; }

  int fill(PyObject* self, Py_buffer* view, int flags) {
    const auto known = info();
    if (PyBuffer_FillInfo(view, self, known.data, static_cast<Py_ssize_t>(known.size_bytes), 0, flags) != 0) return -1;
    ++views_;
    return 0;
  }
  void release() { --views_; }

 private:
  peerlane::host_pool pool_;
  std::size_t views_ = 0;
  const pid_t process_ = process_number();
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  return call_guarded([&] { return nb::inst_ptr<host_pool>(nb::handle(self))->fill(self, view, flags); }, -1);
}

void release_buffer(PyObject* self, Py_buffer*) { nb::inst_ptr<host_pool>(nb::handle(self))->release(); }

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

}  // namespace

void bind_host_pool(nb::module_& module) {
  nb::class_<host_pool>(module, "HostPoolBase", nb::type_slots(buffer_slots), nb::is_weak_referenceable(),
                        "What peerlane.HostPool is built on.")
      .def(nb::init<std::uint64_t, int, std::uint64_t>(), nb::arg("size_bytes"), nb::arg("device"), nb::arg("piece_bytes"))
      .def("wait", &host_pool::wait, nb::arg("timeout").none() = nb::none(),
           "Waits until the whole pool is pinned. You never have to call it. Timeout after this many seconds; Error if "
           "pinning has\nstopped.")
      .def("close", &host_pool::close,
           "Frees the memory. BufferError while there are views of it. You may call it repeatedly.")
      .def_prop_ro("closed", &host_pool::is_closed, "Whether close() was called.")
      .def_prop_ro(
          "size_bytes", [](const host_pool& self) { return self.info().size_bytes; }, "Size of the whole pool.")
      .def_prop_ro(
          "pinned_bytes", [](const host_pool& self) { return self.info().pinned_bytes; },
          "Bytes pinned so far, from the beginning; grows until the whole pool is pinned.")
      .def_prop_ro(
          "address", [](const host_pool& self) { return reinterpret_cast<std::uintptr_t>(self.info().data); },
          "Address of the first byte.")
      .def_prop_ro(
          "numa_node", [](const host_pool& self) { return self.info().numa_node; }, "NUMA node; -1: unknown.");
}

}  // namespace pl::py
