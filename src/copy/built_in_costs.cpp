// SPDX-License-Identifier: Apache-2.0
// The cost table of a machine that has not been calibrated.
#include <cstdlib>

#include "cost_table.hpp"

namespace pl::copy {
namespace {

// docs/results/envelope/h100: the calibration of that run, without the points that lie on the line between their neighbours;
// between two GPUs: H200 with NVLink, docs/results/envelope/h200x2.
constexpr const char* kText = R"(peerlane-calibration/1
curve to_device pinned cpu_store 1 64:454 256:496 1024:490 8192:1239 4194304:342247 16777216:1444579
curve to_device pinned cpu_store 2 8192:1547 67108864:3008357
curve to_device pinned cpu_store 4 8192:1479 65536:3585 262144:7842 67108864:2015787
curve to_device pinned cpu_store 8 8192:1497 32768:2720 262144:8348 67108864:2014675
curve to_device pinned engine_copy 1 64:4501 4096:4680 8192:6001 16384:5054 16777216:1606143
curve to_device pinned engine_copy 4 16384:5297 32768:6743 65536:6205 1048576:32450 16777216:427820
curve to_device pinned engine_copy 8 16384:6124 32768:6153 65536:7520 262144:10152 16777216:333628
curve to_device pinned copy_engine 1 64:6958 8192:8542 16384:9064 32768:8851 67108864:1223158
curve to_device pageable cpu_store 1 64:496 1024:525 8192:1248 16777216:1444259
curve to_device pageable cpu_store 2 8192:1544 16384:1875 32768:2746 16777216:740627 67108864:3083646
curve to_device pageable cpu_store 4 8192:1590 65536:3889 262144:8060 67108864:2022992
curve to_device pageable cpu_store 8 8192:1596 32768:2712 65536:3719 262144:8346 67108864:2012504
curve to_device pageable bounce 1 65536:15678 262144:36348 16777216:1594683 67108864:6566457
curve to_device pageable bounce 2 65536:15346 262144:35426 16777216:829596 67108864:3352810
curve to_device pageable bounce 4 65536:15320 262144:35551 1048576:76626 4194304:150720 67108864:1740914
curve to_device pageable bounce 8 65536:15300 262144:35476 1048576:76223 4194304:148957 67108864:1730409
curve to_device pageable registered 1 1048576:402103 67108864:5223343
curve to_device pageable copy_engine 1 64:6767 32768:11297 65536:16618 262144:29788 67108864:5093355
curve to_host pinned cpu_load 1 64:1233 1024:1254 262144:267341
curve to_host pinned engine_low_latency 1 64:2265 32768:5473
curve to_host pinned engine_copy 1 64:3135 16384:3409 262144:9712 16777216:401846
curve to_host pinned engine_copy 2 16384:3579 16777216:322869
curve to_host pinned copy_engine 1 64:6182 67108864:1220724
curve to_host pageable cpu_load 1 64:1272 1024:1279 2048:2260 4096:4448 16384:22221 262144:354889
curve to_host pageable engine_low_latency 1 64:2498 256:2520 512:2340 2048:2631 4096:2678 32768:5542
curve to_host pageable engine_bounce 1 64:3124 4096:3297 8192:3686 16384:3957 65536:8587 1048576:87631
curve to_host pageable engine_bounce 4 16384:4038 32768:5404 65536:8679 1048576:89354
curve to_host pageable bounce 1 65536:11137 262144:26255 1048576:73396 16777216:1593699 67108864:7769140
curve to_host pageable bounce 2 65536:11596 262144:27000 1048576:75337 4194304:218766 67108864:3444219
curve to_host pageable bounce 4 65536:11133 262144:26202 1048576:73147 4194304:205381 16777216:683537 67108864:2359217
curve to_host pageable bounce 8 65536:11107 262144:26292 1048576:73336 4194304:232321 67108864:2536521
curve to_host pageable registered 1 1048576:356796 67108864:4292298
curve to_host pageable copy_engine 1 64:11066 65536:18635 1048576:110681 16777216:1297605 67108864:4878320
curve on_device same_gpu cpu_relay 1 64:1711 1024:1849 4096:5061 16384:19434 65536:81225
curve on_device same_gpu engine_copy 1 64:3160 4096:3289 8192:3665 16384:3680 262144:9320 4194304:88877 16777216:531306
curve on_device same_gpu engine_copy 8 16384:4385 4194304:16147 16777216:66512
curve on_device same_gpu copy_engine 1 64:10658 128:9343 4194304:10560 16777216:16135 67108864:55192
curve on_device peer_gpu cpu_relay 1 64:1415 1024:1501 2048:2552 4096:4609 65536:78698
curve on_device peer_gpu copy_engine 1 64:7300 16384:7700 65536:7960 1048576:10900 67108864:179000
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
