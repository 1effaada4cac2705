// SPDX-License-Identifier: Apache-2.0
// peerlane._store: watches, which report changes of keys.
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gil.hpp"
#include "store_connection.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

// Thread-safe. One thread may wait at a time.
class watch {
 public:
  watch(peerlane_store_watch_t handle, nb::object owner) : owner_(std::move(owner)), handle_(handle) {}
  ~watch() { close(); }
  watch(const watch&) = delete;
  watch& operator=(const watch&) = delete;

  void close() {
    const auto handle = handle_.exchange(nullptr);
    if (handle == nullptr) return;
    const gil_release waiting;  // waits for a thread in next()
    (void)peerlane_store_watch_close(handle);
  }
  bool is_open() const noexcept { return handle_.load() != nullptr; }

  struct event {
    std::uint32_t change;
    std::string key;
    std::uint64_t version, value_bytes, lost;
  };
  // Ctrl-C ends the wait; no change is lost.
  std::vector<event> next(std::int64_t timeout_ms) {
    std::vector<event> out;
    int code = ETIMEDOUT;
    std::string reason;
    (void)wait_in_slices(std::chrono::milliseconds(timeout_ms), [&](std::chrono::milliseconds slice) {
      const auto handle = handle_.load();
      if (handle == nullptr) return code = ECANCELED, reason = "the watch is closed", true;
      code = peerlane_store_watch_next(handle, slice.count(), &keep, &out);
      if (code != 0) reason = peerlane_store_last_error();
      return code != ETIMEDOUT;
    });
    if (code != 0) throw error(code, reason);
    return out;
  }

 private:
  static int keep(void* context, const peerlane_watch_event* one) {
    auto& out = *static_cast<std::vector<event>*>(context);
    out.push_back({one->change, {}, one->version, one->size_bytes, one->lost});
    if (one->key_size_bytes != 0) out.back().key.assign(static_cast<const char*>(one->key), one->key_size_bytes);
    return 0;
  }
  nb::object owner_;  // the connection, which must outlive the watch
  std::atomic<peerlane_store_watch_t> handle_;
};

using change = nb::typed<nb::tuple, int, nb::bytes, int, int, int>;

nb::typed<nb::list, change> next_changes(watch& self, std::int64_t timeout_ms) {
  nb::list out;
  for (const auto& one : self.next(timeout_ms))
    out.append(
        nb::make_tuple(one.change, nb::bytes(one.key.data(), one.key.size()), one.version, one.value_bytes, one.lost));
  return out;
}

std::unique_ptr<watch> open_watch(self_t self, std::uint32_t pool, bytes_argument prefix, bool is_key) {
  const key_bytes begin(prefix);
  auto opened = asked(
      self, [&](const auto& store) { return is_key ? store.watch_key(pool, begin.text) : store.watch(pool, begin.text); });
  return std::make_unique<watch>(opened.release(), nb::borrow(self));
}

}  // namespace

void bind_watches(nb::module_& module, nb::class_<connection>& bound) {
  nb::class_<watch>(module, "Watch", "The native part of peerlane.store.Watch.")
      .def("next", &next_changes, nb::arg("timeout_ms"))
      .def("close", &watch::close)
      .def_prop_ro("is_open", &watch::is_open);
  bound.def("watch", &open_watch, nb::arg("pool"), nb::arg("prefix"), nb::arg("is_key"));
}

}  // namespace pl::py
