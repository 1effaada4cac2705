// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/engine_scenario.hpp"

#include <unistd.h>

#include <algorithm>

namespace pl::tools {
namespace {

constexpr std::uint64_t kBeside = 256u << 10;  // long enough to keep a worker at work, short enough to stop soon
constexpr unsigned kSimulatedLeaseUs = 5000;   // the planner lengthens it there

}  // namespace

const char* name_of(engine_state state) {
  switch (state) {
    case engine_state::none:
      return "none";
    case engine_state::expired:
      return "expired";
    case engine_state::held:
      return "held";
    case engine_state::used:
      return "used";
  }
  return "?";
}

engine_scenario::engine_scenario(const gpu_session& gpu, const copy::planner::options& wanted)
    : gpu_(gpu),
      wanted_(wanted),
      lease_us_(gpu.simulated() ? std::max(wanted.engine.lease_us, kSimulatedLeaseUs) : wanted.engine.lease_us),
      host_(gpu, kBeside),
      device_(gpu, gpu.ordinal(), kBeside) {}

bool engine_scenario::enter(engine_state state) {
  stop_user();
  if (state == engine_state::none) {
    planner_.reset();
    return true;
  }
  if (!why_not_.empty()) return false;
  if (!planner_) planner_.emplace(gpu_, wanted_);
  if (!planner_->hold()) {
    why_not_ = planner_->why_not();
    planner_.reset();
    return false;
  }
  if (state == engine_state::used) start_user();
  if (state == engine_state::expired) {
    planner_->let_go();
    usleep(5 * lease_us_);  // the leases of both streams' kernels
  }
  return true;
}

void engine_scenario::start_user() {
  stop_ = false;
  user_ = std::thread([this] {
    gpu_.make_current();
    const copy::transfer long_one{copy::direction::to_host, copy::address_of(host_.data()), device_.get(), kBeside};
    const copy::transfer short_one{copy::direction::to_host, copy::address_of(host_.data()), device_.get(), 1024};
    while (!stop_.load(std::memory_order_relaxed)) {
      const bool took_long = (*planner_)->copy_by({copy::method::engine_copy, 1}, long_one).ok();
      const bool took_short = (*planner_)->copy_by({copy::method::engine_low_latency, 1}, short_one).ok();
      copies_.fetch_add(took_long + took_short, std::memory_order_relaxed);
    }
  });
}

void engine_scenario::stop_user() {
  stop_ = true;
  if (user_.joinable()) user_.join();
}

}  // namespace pl::tools
