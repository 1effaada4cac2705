// SPDX-License-Identifier: Apache-2.0
// Shared by the files of peerlane._store: the connection, keys, ranges of memory, and results of operations.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <peerlane/store.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "arguments.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "waiting.hpp"

namespace nb = nanobind;

namespace pl::py {

// A contiguous range of memory, which peerlane._core.one_run() made from a tensor in Python.
using run = std::tuple<std::uint64_t, std::uint64_t, nb::object>;  // address, size in bytes, what keeps the memory
// version, value_bytes, moved_bytes, path, durability: numbers of <peerlane/store.h>.
using reply = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t>;

inline reply reply_of(const peerlane::op_info& info) {
  return {info.version, info.size_bytes, info.moved_bytes, info.path, info.durability};
}

// The bytes of a key, kept alive while the GIL is released.
struct key_bytes {
  explicit key_bytes(bytes_argument given) : owner(given.as("key")), text(owner.c_str(), owner.size()) {}
  nb::bytes owner;
  std::string_view text;
};

inline peerlane::buffer buffer_at(const run& memory) {
  return peerlane_buffer{std::get<0>(memory), std::get<1>(memory), PEERLANE_MEMORY_ANY, 0};
}

// While it exists, Ctrl-C ends calls of this thread that wait for the store, which then fail with EINTR.
class signal_checks {
 public:
  signal_checks() { peerlane_store_interrupt_by(&check, this); }
  ~signal_checks() { peerlane_store_interrupt_by(nullptr, nullptr); }
  signal_checks(const signal_checks&) = delete;
  signal_checks& operator=(const signal_checks&) = delete;
  // Throws what a handler of a signal has thrown.
  void rethrow() {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  static int check(void* self) noexcept {
    try {
      check_signals();
      return 0;
    } catch (...) {
      static_cast<signal_checks*>(self)->thrown_ = std::current_exception();
      return 1;
    }
  }
  std::exception_ptr thrown_;
};

class connection {
 public:
  connection(const std::optional<std::string>& socket, const std::optional<std::string>& endpoint,
             const std::optional<std::tuple<std::string, std::string, std::string>>& tls, std::int64_t timeout_ms) {
    auto options = peerlane::store::options();
    if (socket) options.socket = socket->c_str();
    if (endpoint) options.endpoint = endpoint->c_str();
    if (tls) {
      options.tls_certificate = std::get<0>(*tls).c_str();
      options.tls_key = std::get<1>(*tls).c_str();
      options.tls_authority = std::get<2>(*tls).c_str();
    }
    options.timeout_ms = timeout_ms;
    signal_checks signals;
    auto opened = [&] {
      const gil_release waiting;
      return peerlane::store::open(&options);
    }();
    signals.rethrow();
    store_.emplace(value_of(std::move(opened)));
  }
  ~connection() { (void)end(); }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  void close() { must(end()); }
  bool is_open() const noexcept { return store_.has_value() && !has_ended_; }
  const peerlane::store& store() const {
    if (!is_open()) throw nb::value_error("the store is closed");
    return *store_;
  }

 private:
  // EBUSY: a watch is open, and so is the store. EDEADLK: called by the function of one of its operations.
  peerlane::status end() {
    if (!is_open()) return {};
    has_ended_ = true;  // with the GIL held: of several threads one closes
    const auto outcome = [&] {
      const gil_release waiting;  // closing waits for copies in progress
      return store_->close();
    }();
    if (!outcome && (outcome.error().code == EBUSY || outcome.error().code == EDEADLK)) has_ended_ = false;
    return outcome;
  }
  std::optional<peerlane::store> store_;  // stays as it is: other threads may be in calls
  bool has_ended_ = false;
};

using self_t = nb::handle_t<connection>;
inline const peerlane::store& store_of(self_t self) { return nb::inst_ptr<connection>(self)->store(); }

// Runs `call(store)` without the GIL, and throws its error, or what Ctrl-C has thrown.
template <class Call>
auto asked(self_t self, Call&& call) {
  const auto& store = store_of(self);
  signal_checks signals;
  auto outcome = [&] {
    const gil_release waiting;
    return call(store);
  }();
  signals.rethrow();
  if constexpr (requires { *outcome; }) return value_of(std::move(outcome));
  else must(outcome);
}

inline peerlane_put_options put_options(std::uint32_t durability, std::uint32_t condition, std::uint64_t version,
                                        std::uint64_t ttl_ms = 0) {
  auto options = peerlane::store::put_options();
  options.durability = durability;
  options.condition = condition;
  options.expected_version = version;
  options.ttl_ms = ttl_ms;
  return options;
}

// store_batches.cpp: calls with many keys, and scans by page.
void bind_batches(nb::class_<connection>& bound);
// store_watch.cpp: changes of keys.
void bind_watches(nb::module_& module, nb::class_<connection>& bound);

}  // namespace pl::py
