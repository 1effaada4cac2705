// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/copy_streams.hpp"

namespace pl::link {

result<std::unique_ptr<copy_lanes>> copy_lanes::open(const copy::gpu_context& context) {
  std::unique_ptr<copy_lanes> made(new copy_lanes);
  for (auto& lane : made->lanes_) {
    // One stream each: an engine of several would keep a thread on the same one.
    auto opened = copy::copy_engine::open(context, 1);
    if (!opened) return std::move(opened).error();
    lane = *std::move(opened);
  }
  return made;
}

result<copy_lanes::mark> copy_lanes::submit(std::span<const copy::transfer> copies) {
  auto& lane = *lanes_[next_++ % kLanes];
  auto queued = lane.submit(copies);
  if (!queued) return std::move(queued).error();
  return mark{&lane, *queued};
}

}  // namespace pl::link
