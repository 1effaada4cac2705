// SPDX-License-Identifier: Apache-2.0
// peerlane._store: the compiled half of peerlane.store, over <peerlane/store.hpp>. It is a separate
// module, because a build may omit the store's client, and programs without a store should not load it. Its operations are
// those of peerlane._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "gil.hpp"
#include "loaded_module.hpp"
#include "operation.hpp"
#include "raise.hpp"
#include "store_connection.hpp"

namespace pl::py {
namespace {

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
  auto bound =
      nb::class_<connection>(module, "Connection", nb::is_weak_referenceable(), "The native part of peerlane.store.Store.")
          .def(nb::init<const std::optional<std::string>&, const std::optional<std::string>&,
                        const std::optional<std::tuple<std::string, std::string, std::string>>&, std::int64_t>(),
               nb::arg("socket").none(), nb::arg("endpoint").none(), nb::arg("tls").none(), nb::arg("timeout_ms"))
          .def("close", &connection::close)
          .def_prop_ro("is_open", &connection::is_open)
          .def("create_pool", &create_pool, nb::arg("name"), nb::arg("durability"), nb::arg("quota_bytes"),
               nb::arg("copies"), nb::arg("is_cache"), nb::arg("cache_memory_bytes"), nb::arg("cache_disk_bytes"),
               nb::arg("ttl_ms"), nb::arg("eviction"))
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
          .def("put", &put, pool, key, value, nb::arg("durability"), nb::arg("condition"), nb::arg("version"),
               nb::arg("ttl_ms"))
          .def("get", &get, pool, key, value, nb::arg("offset"), nb::arg("verify"))
          .def("begin_put", &begin_put, pool, key, value, nb::arg("durability"), nb::arg("condition"), nb::arg("version"),
               nb::arg("ttl_ms"))
          .def("begin_get", &begin_get, pool, key, value, nb::arg("offset"), nb::arg("verify"))
          .def("erase", &erase, pool, key, nb::arg("condition"), nb::arg("version"))
          .def("stat", &stat, pool, key);
  bind_batches(bound);
  bind_watches(module, bound);
}

}  // namespace
}  // namespace pl::py

NB_MODULE(_store, module) {
  nb::module_::import_("peerlane._core");  // defines the Operation that these calls return
  static pl::py::loaded_module loaded;
  if (loaded.refill(module)) return;
  nb::set_leak_warnings(false);
  nb::register_exception_translator(&pl::py::translate_errors);
  module.doc() = "The compiled half of peerlane.store; use that.";
  pl::py::interpreter_end::expect();
  pl::py::bind_store(module);
  loaded.keep(module);
}
