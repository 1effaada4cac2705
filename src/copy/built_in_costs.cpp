// SPDX-License-Identifier: Apache-2.0
// The cost table of a machine that has not been calibrated.
#include <cstdlib>

#include "cost_table.hpp"

namespace pl::copy {
namespace {

constexpr const char* kText = R"(peerlane-calibration/1
curve to_device pinned cpu_store 1 1:120 256:150 1024:200 4096:380 65536:4000 1048576:67000
curve to_device pinned cpu_store 4 16384:900 65536:2400 1048576:35000
curve to_device pinned engine_copy 4 16384:4800 65536:6500 262144:10700 1048576:25800 16777216:334000
curve to_device pinned copy_engine 1 1:6500 65536:9000 1048576:26500 16777216:312000
curve to_device pageable cpu_store 1 1:120 256:150 1024:200 4096:380 65536:4000 1048576:67000
curve to_device pageable cpu_store 4 16384:900 65536:2400 1048576:35000
curve to_device pageable bounce 4 65536:15000 1048576:45000 16777216:420000
curve to_host pinned cpu_load 1 1:1050 1024:1060 2048:2100 65536:67000
curve to_host pinned engine_low_latency 1 1:2130 1024:2340 4096:2860 16384:5100
curve to_host pinned engine_copy 1 1:3120 16384:3390 65536:4560 262144:9270
curve to_host pinned engine_copy 2 16384:3400 65536:4310 262144:8050 1048576:23100 16777216:322000
curve to_host pinned copy_engine 1 1:6500 65536:7800 1048576:25500 16777216:312000
curve to_host pageable cpu_load 1 1:1050 1024:1060 2048:2100 65536:67000
curve to_host pageable engine_low_latency 1 1:2130 1024:2340 4096:2860 16384:5100
curve to_host pageable engine_bounce 4 16384:5000 65536:8000 1048576:60000
curve to_host pageable bounce 4 65536:15000 1048576:45000 16777216:420000
curve on_device same_gpu cpu_relay 1 1:1150 1024:1200 2048:2300 65536:75000
curve on_device same_gpu engine_copy 8 16384:3300 65536:3400 1048576:4500
curve on_device same_gpu copy_engine 1 1:6500 1048576:8000
curve on_device peer_gpu cpu_relay 1 1:1150 1024:1200 2048:2300 65536:75000
curve on_device peer_gpu copy_engine 1 1:7000 1048576:15000
)";

}  // namespace

const cost_table& cost_table::built_in() {
  static const cost_table* const table = [] {
    auto parsed = parse(kText);
    if (!parsed) std::abort();  // a test parses it
    return new cost_table(*std::move(parsed));
  }();
  return *table;
}

}  // namespace pl::copy
