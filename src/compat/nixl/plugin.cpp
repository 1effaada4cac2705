// SPDX-License-Identifier: Apache-2.0
// What NIXL looks for in libplugin_PEERLANE.so.
#include <peerlane/peerlane.h>

#include <exception>

#define PL_TEXT_OF(x) #x
#define PL_TEXT(x) PL_TEXT_OF(x)

#include "base/log.hpp"
#include "compat/nixl/backend.hpp"
#include "compat/nixl/caller_version.hpp"

namespace pl::nixl {
namespace {

abi::engine* create(const abi::engine_options* options) {
  try {
    return new backend(*options);
  } catch (const std::exception& reason) {
    log_line(log_level::error, "NIXL: no backend: %s", reason.what());
    return nullptr;
  }
}

abi::plugin g_plugin = {
    abi::kPluginInterface,
    create,
    [](abi::engine* ended) { delete ended; },
    [] { return "PEERLANE"; },
    [] { return PL_TEXT(PEERLANE_VERSION_MAJOR) "." PL_TEXT(PEERLANE_VERSION_MINOR); },
    [] { return abi::parameters(); },
    [] {
      return abi::memory_types{abi::memory_type::dram, abi::memory_type::vram};
    },
};

}  // namespace
}  // namespace pl::nixl

extern "C" __attribute__((visibility("default"))) pl::nixl::abi::plugin* nixl_plugin_init() {
  if (auto known = pl::nixl::check_caller(__builtin_return_address(0)); !known) {
    pl::log_line(pl::log_level::error, "%s", known.error().message.c_str());
    return nullptr;
  }
  return &pl::nixl::g_plugin;
}
extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
