// SPDX-License-Identifier: Apache-2.0
// peerlane._store: calls with many keys, scans in key order, and erasing by prefix.
#include <nanobind/stl/vector.h>

#include <vector>

#include "store_connection.hpp"

namespace pl::py {
namespace {

// One key of a batch: key, memory, condition, version. The memory is empty for erase and stat, which move no bytes.
using item = std::tuple<nb::bytes, run, std::uint32_t, std::uint64_t>;
// The errno value of one key (0: success), and its reply.
using outcome = std::tuple<int, reply>;

constexpr std::size_t kKey = 0, kRun = 1, kCondition = 2, kVersion = 3;

std::vector<peerlane_store_item> items_of(std::uint32_t request, std::uint32_t pool, const std::vector<item>& given,
                                          const std::vector<peerlane_put_options>& options) {
  std::vector<peerlane_store_item> out;
  out.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& key = std::get<kKey>(given[i]);
    out.push_back(peerlane::store::item_for(static_cast<peerlane_store_request>(request), pool, {key.c_str(), key.size()},
                                            buffer_at(std::get<kRun>(given[i]))));
    out.back().put_options = &options[i];
  }
  return out;
}

std::vector<outcome> batch(self_t self, std::uint32_t request, std::uint32_t pool, const std::vector<item>& given,
                           std::uint32_t durability, integer_argument ttl_ms, bool is_atomic) {
  const auto ttl = ttl_ms.as<std::uint64_t>("ttl");
  std::vector<peerlane_put_options> options;
  for (const auto& one : given)
    options.push_back(put_options(durability, std::get<kCondition>(one), std::get<kVersion>(one), ttl));
  const auto items = items_of(request, pool, given, options);
  peerlane_batch_options settings{};
  settings.struct_bytes = sizeof settings;
  settings.is_atomic = is_atomic ? 1 : 0;
  const auto infos = asked(self, [&](const auto& store) { return store.batch(items, &settings); });
  std::vector<outcome> out;
  for (const auto& info : infos) out.emplace_back(info.error, reply_of(info));
  return out;
}

// One page of keys in order: (key, value_bytes, version) of each.
nb::typed<nb::list, nb::typed<nb::tuple, nb::bytes, int, int>> scan(self_t self, std::uint32_t pool, bytes_argument prefix,
                                                                    const std::optional<std::string>& regex,
                                                                    bytes_argument after, integer_argument limit) {
  const key_bytes begin(prefix), behind(after);
  const auto most = limit.as<std::uint64_t>("limit");
  const char* const pattern = regex ? regex->c_str() : nullptr;
  const auto found =
      asked(self, [&](const auto& store) { return store.scan(pool, begin.text, behind.text, most, pattern); });
  nb::list out;
  for (const auto& one : found)
    out.append(nb::make_tuple(nb::bytes(one.key.data(), one.key.size()), one.value_size_bytes, one.version));
  return out;
}

std::uint64_t erase_prefix(self_t self, std::uint32_t pool, bytes_argument prefix) {
  const key_bytes begin(prefix);
  return asked(self, [&](const auto& store) { return store.erase_prefix(pool, begin.text); });
}

}  // namespace

void bind_batches(nb::class_<connection>& bound) {
  const auto pool = nb::arg("pool");
  bound
      .def("batch", &batch, nb::arg("request"), pool, nb::arg("items"), nb::arg("durability"), nb::arg("ttl_ms"),
           nb::arg("is_atomic"))
      .def("scan", &scan, pool, nb::arg("prefix"), nb::arg("regex").none(), nb::arg("after"), nb::arg("limit"))
      .def("erase_prefix", &erase_prefix, pool, nb::arg("prefix"));
}

}  // namespace pl::py
