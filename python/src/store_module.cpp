// SPDX-License-Identifier: Apache-2.0
// peerlane._store: the compiled half of peerlane.store, over <peerlane/store.hpp>. A module of its own, since the store's
// client may be left out of a build and programs without a store should not load it. Operations are peerlane._core's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <memory>
#include <optional>
#include <peerlane/store.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "error.hpp"
#include "operation.hpp"
#include "raise.hpp"

namespace pl::py {
namespace {

// What a caller of Python says where the bytes lie: peerlane._core.one_run() has looked at the tensor.
using run = std::tuple<std::uint64_t, std::uint64_t, nb::object>;  // address, size in bytes, what keeps the memory
// version, value_bytes, moved_bytes, path, durability: numbers of <peerlane/store.h>.
using reply = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t>;

reply reply_of(const peerlane::op_info& info) {
  return {info.version, info.size_bytes, info.moved_bytes, info.path, info.durability};
}

// A key's bytes, kept while the GIL is not held.
struct key_bytes {
  explicit key_bytes(bytes_argument given) : owner(given.as("key")), text(owner.c_str(), owner.size()) {}
  nb::bytes owner;
  std::string_view text;
};

peerlane::buffer buffer_at(const run& memory) {
  return peerlane_buffer{std::get<0>(memory), std::get<1>(memory), PEERLANE_MEMORY_ANY, 0};
}

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
    const nb::gil_scoped_release waiting;
    store_.emplace(value_of(peerlane::store::open(&options)));
  }
  ~connection() { (void)end(); }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  void close() { must(end()); }
  bool is_open() const noexcept { return store_.has_value(); }
  const peerlane::store& store() const {
    if (!store_) throw nb::value_error("the store is closed");
    return *store_;
  }

 private:
  peerlane::status end() {
    if (!store_) return {};
    const nb::gil_scoped_release waiting;  // copies under way are waited for
    const auto outcome = store_->close();
    store_.reset();
    return outcome;
  }
  std::optional<peerlane::store> store_;
};

using self_t = nb::handle_t<connection>;
const peerlane::store& store_of(self_t self) { return nb::inst_ptr<connection>(self)->store(); }

// `call(store)` without the GIL; throws what it failed with.
template <class Call>
auto asked(self_t self, Call&& call) {
  const auto& store = store_of(self);
  auto outcome = [&] {
    const nb::gil_scoped_release waiting;
    return call(store);
  }();
  if constexpr (requires { *outcome; }) return value_of(std::move(outcome));
  else must(outcome);
}

peerlane_put_options put_options(std::uint32_t durability, std::uint32_t condition, std::uint64_t version,
                                 std::uint64_t ttl_ms = 0) {
  auto options = peerlane::store::put_options();
  options.durability = durability;
  options.condition = condition;
  options.expected_version = version;
  options.ttl_ms = ttl_ms;
  return options;
}

peerlane_get_options get_options(std::uint64_t offset, bool verify) {
  auto options = peerlane::store::get_options();
  options.offset_bytes = offset;
  options.verify = verify ? 1 : 0;
  return options;
}

reply put(self_t self, std::uint32_t pool, bytes_argument key, const run& value, std::uint32_t durability,
          std::uint32_t condition, std::uint64_t version, integer_argument ttl_ms) {
  const key_bytes name(key);
  const auto options = put_options(durability, condition, version, ttl_ms.as<std::uint64_t>("ttl"));
  const auto source = buffer_at(value);
  return reply_of(asked(self, [&](const auto& store) { return store.put(pool, name.text, source, &options); }));
}

reply get(self_t self, std::uint32_t pool, bytes_argument key, const run& value, integer_argument offset, bool verify) {
  const key_bytes name(key);
  const auto options = get_options(offset.as<std::uint64_t>("offset"), verify);
  const auto destination = buffer_at(value);
  return reply_of(asked(self, [&](const auto& store) { return store.get(pool, name.text, destination, &options); }));
}

std::unique_ptr<operation> operation_of(self_t self, const run& value, peerlane::operation begun) {
  return std::make_unique<operation>(std::move(begun), nb::borrow(self), std::get<2>(value), nb::none(),
                                     operation::kind::store);
}

std::unique_ptr<operation> begin_put(self_t self, std::uint32_t pool, bytes_argument key, const run& value,
                                     std::uint32_t durability, std::uint32_t condition, std::uint64_t version,
                                     integer_argument ttl_ms) {
  const key_bytes name(key);
  const auto options = put_options(durability, condition, version, ttl_ms.as<std::uint64_t>("ttl"));
  const auto source = buffer_at(value);
  return operation_of(self, value,
                      asked(self, [&](const auto& store) { return store.begin_put(pool, name.text, source, &options); }));
}

std::unique_ptr<operation> begin_get(self_t self, std::uint32_t pool, bytes_argument key, const run& value,
                                     integer_argument offset, bool verify) {
  const key_bytes name(key);
  const auto options = get_options(offset.as<std::uint64_t>("offset"), verify);
  const auto destination = buffer_at(value);
  return operation_of(
      self, value, asked(self, [&](const auto& store) { return store.begin_get(pool, name.text, destination, &options); }));
}

reply erase(self_t self, std::uint32_t pool, bytes_argument key, std::uint32_t condition, std::uint64_t version) {
  const key_bytes name(key);
  const auto options = put_options(0, condition, version);
  return reply_of(asked(self, [&](const auto& store) { return store.erase(pool, name.text, &options); }));
}

reply stat(self_t self, std::uint32_t pool, bytes_argument key) {
  const key_bytes name(key);
  return reply_of(asked(self, [&](const auto& store) { return store.stat(pool, name.text); }));
}

nb::typed<nb::list, nb::typed<nb::tuple, nb::bytes, int>> find(self_t self, std::uint32_t pool,
                                                               const std::optional<nb::bytes>& prefix,
                                                               const std::optional<std::string>& regex) {
  const std::string begin = prefix ? std::string(prefix->c_str(), prefix->size()) : std::string();
  if (begin.find('\0') != std::string::npos)
    throw nb::value_error("prefix: it holds a zero byte, which searches cannot look for");
  std::vector<std::pair<std::string, std::uint64_t>> found;
  asked(self, [&](const auto& store) {
    return store.find(pool, prefix ? begin.c_str() : nullptr, regex ? regex->c_str() : nullptr,
                      [&](std::string_view key, std::uint64_t size_bytes) {
                        found.emplace_back(key, size_bytes);
                        return true;
                      });
  });
  nb::list out;
  for (const auto& [key, size_bytes] : found) out.append(nb::make_tuple(nb::bytes(key.data(), key.size()), size_bytes));
  return out;
}

std::uint32_t create_pool(self_t self, const std::string& name, std::uint32_t durability, integer_argument quota_bytes,
                          integer_argument copies, bool is_cache, integer_argument memory_bytes, integer_argument disk_bytes,
                          integer_argument ttl_ms, std::uint32_t eviction) {
  peerlane_pool_options options{};
  options.struct_bytes = sizeof options;
  options.durability = durability;
  options.quota_bytes = quota_bytes.as<std::uint64_t>("quota_bytes");
  options.copies = copies.as<std::uint32_t>("copies");
  options.is_cache = is_cache ? 1 : 0;
  options.cache_memory_bytes = memory_bytes.as<std::uint64_t>("cache_memory_bytes");
  options.cache_disk_bytes = disk_bytes.as<std::uint64_t>("cache_disk_bytes");
  options.cache_ttl_ms = ttl_ms.as<std::uint64_t>("ttl");
  options.cache_eviction = eviction;
  return asked(self, [&](const auto& store) { return store.create_pool(name.c_str(), &options); });
}

void bind_store(nb::module_& module) {
  const auto pool = nb::arg("pool");
  const auto key = nb::arg("key");
  const auto value = nb::arg("run");
  nb::class_<connection>(module, "Connection", nb::is_weak_referenceable(), "What peerlane.store.Store stands on.")
      .def(nb::init<const std::optional<std::string>&, const std::optional<std::string>&,
                    const std::optional<std::tuple<std::string, std::string, std::string>>&, std::int64_t>(),
           nb::arg("socket").none(), nb::arg("endpoint").none(), nb::arg("tls").none(), nb::arg("timeout_ms"))
      .def("close", &connection::close)
      .def_prop_ro("is_open", &connection::is_open)
      .def("create_pool", &create_pool, nb::arg("name"), nb::arg("durability"), nb::arg("quota_bytes"), nb::arg("copies"),
           nb::arg("is_cache"), nb::arg("cache_memory_bytes"), nb::arg("cache_disk_bytes"), nb::arg("ttl_ms"),
           nb::arg("eviction"))
      .def(
          "open_pool",
          [](self_t self, const std::string& name) {
            return asked(self, [&](const auto& store) { return store.open_pool(name.c_str()); });
          },
          nb::arg("name"))
      .def(
          "delete_pool",
          [](self_t self, const std::string& name) {
            asked(self, [&](const auto& store) { return store.delete_pool(name.c_str()); });
          },
          nb::arg("name"))
      .def(
          "sync",
          [](self_t self, std::uint32_t number) { asked(self, [&](const auto& store) { return store.sync(number); }); },
          pool)
      .def("put", &put, pool, key, value, nb::arg("durability"), nb::arg("condition"), nb::arg("version"), nb::arg("ttl_ms"))
      .def("get", &get, pool, key, value, nb::arg("offset"), nb::arg("verify"))
      .def("begin_put", &begin_put, pool, key, value, nb::arg("durability"), nb::arg("condition"), nb::arg("version"),
           nb::arg("ttl_ms"))
      .def("begin_get", &begin_get, pool, key, value, nb::arg("offset"), nb::arg("verify"))
      .def("erase", &erase, pool, key, nb::arg("condition"), nb::arg("version"))
      .def("stat", &stat, pool, key)
      .def("find", &find, pool, nb::arg("prefix").none(), nb::arg("regex").none());
}

}  // namespace
}  // namespace pl::py

NB_MODULE(_store, module) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator(&pl::py::translate_errors);
  module.doc() = "The compiled half of peerlane.store; use that.";
  nb::module_::import_("peerlane._core");  // whose Operation these calls return
  pl::py::bind_store(module);
}
