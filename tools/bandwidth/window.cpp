// SPDX-License-Identifier: Apache-2.0
#include "window.hpp"

#include <time.h>

#include <algorithm>

#include "clock.hpp"
#include "text.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

void nap() {
  const timespec while_a_gpu_works{0, 20'000};
  nanosleep(&while_a_gpu_works, nullptr);
}

}  // namespace

result<std::unique_ptr<window>> window::make(gpu_set& gpus, std::span<const bound_transfer> transfers) {
  std::unique_ptr<window> fresh(new window(gpus, transfers));
  for (const auto& one : transfers) {
    auto lane = gpu_lane::make(gpus, one);
    if (!lane) return lane.error();
    fresh->lanes_.push_back(*std::move(lane));
  }
  if (fresh->lanes_.empty()) return fresh;
  auto made = gate::make(gpus, fresh->lanes_.front()->gpu());
  if (!made) return made.error();
  fresh->gate_ = *std::move(made);
  return fresh;
}

window::~window() = default;

std::vector<int> window::gpus_in_use() const {
  std::vector<int> out;
  for (const auto& lane : lanes_) out.push_back(lane->gpu());
  return out;
}

bool window::is_busy() {
  return std::any_of(lanes_.begin(), lanes_.end(), [](auto& lane) { return lane->finished().code() == EAGAIN; });
}

result<window_timing> window::run(const window_plan& plan) {
  if (gate_) gate_->close(plan.timeout_s);
  status done = enqueue(plan);
  if (done) done = release(plan);
  if (done) done = wait(plan.timeout_s);
  if (!done) {
    drain(plan.timeout_s);
    return done.error();
  }
  return time_by_gpu();
}

// gate | warm-up | start | copies | end, on each stream. Nobody starts before all have warmed up, and all others after the
// first, whose clock times the window.
status window::enqueue(const window_plan& plan) {
  if (auto queued = enqueue_warm_up(plan); !queued) return queued;
  if (auto chained = chain_starts(); !chained) return chained;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (auto ready = lanes_[i]->select(); !ready) return ready;
    if (auto queued = lanes_[i]->enqueue_copies(plan.copies[i]); !queued) return queued;
    if (auto marked = lanes_[i]->record(gpu_lane::mark::end); !marked) return marked;
  }
  return chain_ends();
}

status window::enqueue_warm_up(const window_plan& plan) {
  for (const auto& lane : lanes_) {
    if (auto ready = lane->select(); !ready) return ready;
    if (auto held = gate_->hold(lane->gpu(), lane->stream()); !held) return held;
    if (auto queued = lane->enqueue_copies(plan.warm_up); !queued) return queued;
    if (auto marked = lane->record(gpu_lane::mark::warm); !marked) return marked;
  }
  return {};
}

status window::chain_starts() {
  if (lanes_.empty()) return {};
  auto& first = *lanes_.front();
  if (auto ready = first.select(); !ready) return ready;
  for (std::size_t i = 1; i < lanes_.size(); ++i)
    if (auto waits = first.wait_for(*lanes_[i], gpu_lane::mark::warm); !waits) return waits;
  if (auto marked = first.record(gpu_lane::mark::start); !marked) return marked;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    if (auto ready = lanes_[i]->select(); !ready) return ready;
    if (auto waits = lanes_[i]->wait_for(first, gpu_lane::mark::start); !waits) return waits;
    if (auto marked = lanes_[i]->record(gpu_lane::mark::start); !marked) return marked;
  }
  return {};
}

status window::chain_ends() {
  if (lanes_.empty()) return {};
  auto& first = *lanes_.front();
  if (auto ready = first.select(); !ready) return ready;
  for (std::size_t i = 1; i < lanes_.size(); ++i)
    if (auto waits = first.wait_for(*lanes_[i], gpu_lane::mark::end); !waits) return waits;
  return first.record(gpu_lane::mark::all_ended);
}

status window::release(const window_plan& plan) {
  if (gate_) gate_->everything_is_enqueued();
  if (gate_ && gate_->was_forced())
    return failure{ETIMEDOUT,
                   format("enqueuing the transfers took longer than %u s: the driver blocked while streams were held; "
                          "fewer copies (--loopCount) may help",
                          plan.timeout_s)};
  if (plan.before_release != nullptr && *plan.before_release)
    if (auto agreed = (*plan.before_release)(); !agreed) return agreed;
  if (gate_) gate_->open();
  return {};
}

status window::wait(unsigned timeout_s) {
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_s * kSecondNs;
  for (const auto& lane : lanes_)
    for (;;) {
      const status now = lane->finished();
      if (now) break;
      if (now.code() != EAGAIN) return now;
      if (monotonic_ns() > deadline_ns)
        return failure{ETIMEDOUT,
                       format("GPU %d did not end its transfers within %u s: a smaller -b or fewer copies take less; "
                              "`dmesg | grep -i xid` tells of a GPU that is stuck",
                              lane->gpu(), timeout_s)};
      nap();
    }
  return {};
}

// After a failure: lets everything that was enqueued run out.
void window::drain(unsigned timeout_s) {
  if (gate_) gate_->open();
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_s * kSecondNs;
  while (is_busy() && monotonic_ns() < deadline_ns) nap();
}

result<window_timing> window::time_by_gpu() {
  window_timing out;
  for (const auto& lane : lanes_) {
    const auto own = lane->elapsed_ns(gpu_lane::mark::start, gpu_lane::mark::end);
    if (!own) return own.error();
    out.own_ns.push_back(*own);
  }
  if (lanes_.empty()) return out;
  const auto whole = lanes_.front()->elapsed_ns(gpu_lane::mark::start, gpu_lane::mark::all_ended);
  if (!whole) return whole.error();
  out.window_ns = *whole;
  // All start together; clocks of different GPUs cannot be compared any closer.
  out.all_ran_ns = std::min(*whole, *std::min_element(out.own_ns.begin(), out.own_ns.end()));
  return out;
}

}  // namespace pl::bandwidth
