// SPDX-License-Identifier: Apache-2.0
#include "tools/common/planner_session.hpp"

#include <unistd.h>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::tools {
namespace {

constexpr std::uint64_t kHotTimeoutNs = 2'000'000'000;  // a launch takes 10 us; only a full GPU takes long

}  // namespace

planner_session::planner_session(const gpu_session& gpu, const copy::planner::options& wanted)
    : gpu_(gpu),
      probe_host_(gpu, 4096),
      probe_device_(gpu, gpu.ordinal(), 4096),
      planner_(must(copy::planner::open(gpu.cuda(), wanted))) {
  must(planner_->prepare(gpu.ordinal()));
  if (!wanted.use_engine) why_not_ = "PEERLANE_COPY_ENGINE disables the copy kernel";
}

bool planner_session::takes_a_copy() {
  const copy::transfer probe{copy::direction::to_host, copy::address_of(probe_host_.data()), probe_device_.get(), 64};
  const auto done = planner_->copy_by({copy::method::engine_copy, 1}, probe);
  if (!done && done.code() != EAGAIN) why_not_ = done.error().message;
  return done.ok();
}

bool planner_session::hold() {
  if (hold_) return true;
  if (!why_not_.empty()) return false;
  auto held = planner_->keep_hot(gpu_.ordinal());
  if (!held) {
    why_not_ = held.error().message;
    return false;
  }
  hold_.emplace(*std::move(held));
  for (const std::uint64_t begin_ns = monotonic_ns(); !takes_a_copy();) {
    if (why_not_.empty() && monotonic_ns() - begin_ns > kHotTimeoutNs)
      why_not_ = "the copy kernel did not start within 2 s: the GPU is full";
    if (!why_not_.empty()) {
      hold_.reset();
      return false;
    }
    usleep(50);
  }
  return true;
}

}  // namespace pl::tools
