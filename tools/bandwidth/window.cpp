// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/window.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/bandwidth/copy_plan.hpp"
#include "tools/bandwidth/transfer_check.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;
// Share of the window: transfers that ran together for less of it took turns, so their joint rate says nothing.
constexpr double kTookTurns = 0.1;

void nap() {
  const timespec while_a_gpu_works{0, 20'000};
  nanosleep(&while_a_gpu_works, nullptr);
}

}  // namespace

result<std::unique_ptr<window>> window::make(gpu_set& gpus, cpu_tools& tools, std::span<const bound_transfer> transfers) {
  std::unique_ptr<window> fresh(new window);
  if (auto opened = fresh->open(gpus, tools, transfers); !opened) return opened.error();
  return fresh;
}

window::~window() = default;

status window::open(gpu_set& gpus, cpu_tools& tools, std::span<const bound_transfer> transfers) {
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto kind = transfers[i].executor.kind;
    const bool is_by_gpu = kind == executor_kind::ce || is_kernel(kind);
    if (!is_by_gpu || blocks_the_cpu(gpus, transfers[i])) {
      auto copier = make_cpu_copier(gpus, tools, transfers[i]);
      if (!copier) return copier.error();
      on_cpus_.push_back({i, *std::move(copier)});
    } else {
      auto copier = gpu_copier::make(gpus, transfers[i], transfers.size() > 1);
      if (!copier) return copier.error();
      on_gpus_.push_back({i, *std::move(copier)});
    }
  }
  if (on_gpus_.empty()) return {};
  auto made = gate::make(gpus, on_gpus_.front().copier->gpu());
  if (!made) return made.error();
  gate_ = *std::move(made);
  return {};
}

std::vector<int> window::gpus_in_use() const {
  std::vector<int> out;
  for (const auto& one : on_gpus_) out.push_back(one.copier->gpu());
  return out;
}

bool window::is_busy() {
  return std::any_of(on_gpus_.begin(), on_gpus_.end(), [](auto& one) { return one.copier->finished().code() == EAGAIN; });
}

std::uint64_t window::retries(std::size_t transfer) const {
  for (const auto& one : on_cpus_)
    if (one.transfer == transfer) return one.copier->retries();
  return 0;
}

result<window_timing> window::run(const window_plan& plan) {
  auto timed = on_cpus_.empty() ? run_on_gpus(plan) : run_with_cpus(plan);
  if (!timed) drain(plan.timeout_s);
  return timed;
}

// ---- GPUs alone: their clocks time it --------------------------------------------------------------------------------

result<window_timing> window::run_on_gpus(const window_plan& plan) {
  if (gate_ && plan.is_held) gate_->close(plan.timeout_s);
  if (auto queued = enqueue(plan); !queued) return queued.error();
  if (auto released = release(plan); !released) return released.error();
  if (auto ended = wait(plan, nullptr); !ended) return ended.error();
  return time_by_gpu();
}

// gate | warm-up | start | copies | end, on each stream. No stream starts before all have warmed up, and all others start
// after the first, whose clock times the window.
status window::enqueue(const window_plan& plan) {
  for (const auto& [transfer, copier, seen] : on_gpus_) {
    if (auto held = hold(plan, *copier); !held) return held;
    if (auto queued = copier->enqueue_copies(plan.warm_up); !queued) return queued;
    if (auto marked = copier->record(gpu_copier::mark::warm); !marked) return marked;
  }
  if (auto chained = chain_starts(); !chained) return chained;
  for (const auto& [transfer, copier, seen] : on_gpus_) {
    if (auto ready = copier->select(); !ready) return ready;
    if (auto queued = copier->enqueue_timed(plan.copies[transfer]); !queued) return queued;
    if (auto marked = copier->record(gpu_copier::mark::end); !marked) return marked;
  }
  return chain_ends();
}

status window::chain_starts() {
  if (on_gpus_.empty()) return {};
  auto& first = *on_gpus_.front().copier;
  if (auto ready = first.select(); !ready) return ready;
  for (std::size_t i = 1; i < on_gpus_.size(); ++i)
    if (auto waits = first.wait_for(*on_gpus_[i].copier, gpu_copier::mark::warm); !waits) return waits;
  if (auto marked = first.record(gpu_copier::mark::start); !marked) return marked;
  for (std::size_t i = 1; i < on_gpus_.size(); ++i) {
    auto& copier = *on_gpus_[i].copier;
    if (auto ready = copier.select(); !ready) return ready;
    if (auto waits = copier.wait_for(first, gpu_copier::mark::start); !waits) return waits;
    if (auto marked = copier.record(gpu_copier::mark::start); !marked) return marked;
  }
  return {};
}

status window::chain_ends() {
  if (on_gpus_.empty()) return {};
  auto& first = *on_gpus_.front().copier;
  if (auto ready = first.select(); !ready) return ready;
  for (std::size_t i = 1; i < on_gpus_.size(); ++i)
    if (auto waits = first.wait_for(*on_gpus_[i].copier, gpu_copier::mark::end); !waits) return waits;
  return first.record(gpu_copier::mark::all_ended);
}

result<window_timing> window::time_by_gpu() {
  window_timing out;
  for (const auto& one : on_gpus_) {
    const auto own = one.copier->elapsed_ns(gpu_copier::mark::start, gpu_copier::mark::end);
    if (!own) return own.error();
    out.own_ns.push_back(*own);
  }
  if (on_gpus_.empty()) return out;
  const auto whole = on_gpus_.front().copier->elapsed_ns(gpu_copier::mark::start, gpu_copier::mark::all_ended);
  if (!whole) return whole.error();
  out.window_ns = *whole;
  if (auto compared = compare_copiers(out); !compared) return compared.error();
  return out;
}

// The joint rate. Copiers of different GPUs start together, and their clocks cannot be compared more closely; copiers of
// one GPU may start one after the other because a copy engine serves them in turn (three peers of one H200: each copied at
// the link's full rate, a third of the time).
status window::compare_copiers(window_timing& out) {
  std::vector<double> start_ns;
  for (auto& one : on_gpus_) {
    const auto first = std::find_if(on_gpus_.begin(), on_gpus_.end(),
                                    [&](const auto& other) { return other.copier->gpu() == one.copier->gpu(); });
    const auto after = first->copier == one.copier ? result<double>(0.0) : one.copier->started_after_ns(*first->copier);
    if (!after) return after.error();
    start_ns.push_back(std::max(*after, 0.0));
  }
  const time_span all_ran = common_span(start_ns, out.own_ns);
  out.all_ran_ns = std::min(out.window_ns, all_ran.length_ns());
  if (on_gpus_.size() < 2) return {};
  if (out.all_ran_ns < kTookTurns * out.window_ns) {
    out.all_ran_ns = 0;
    out.own_ns.assign(out.own_ns.size(), out.window_ns);
    return {};
  }
  for (std::size_t i = 0; i < on_gpus_.size(); ++i) {
    const auto before = on_gpus_[i].copier->copies_until(all_ran.from_ns - start_ns[i]);
    const auto copies = on_gpus_[i].copier->copies_until(all_ran.from_ns + out.all_ran_ns - start_ns[i]);
    if (!before || !copies) return before ? copies.error() : before.error();
    if (*copies && *before) out.copies_while_all_ran.push_back(**copies - **before);
  }
  if (out.copies_while_all_ran.size() != on_gpus_.size()) out.copies_while_all_ran.clear();
  return {};
}

// ---- CPU threads take part: the host's clock times it ----------------------------------------------------------------

result<window_timing> window::run_with_cpus(const window_plan& plan) {
  cpu_team team;  // joined before this returns, however it does
  if (auto ready = get_ready(plan, team); !ready) return ready.error();
  if (gate_ && plan.is_held) gate_->close(plan.timeout_s);
  if (auto queued = enqueue_unchained(plan); !queued) return queued.error();
  if (auto released = release(plan); !released) return released.error();
  const std::uint64_t release_ns = monotonic_ns();
  team.go();
  const status ended = wait(plan, &team);
  if (!ended) team.stop();
  const status joined = team.join();
  if (!joined && joined.code() != ECANCELED) return joined.error();
  if (!ended) return ended.error();
  return time_by_cpu(team, release_ns);
}

// Warm-up is over before the gate opens: from then on the host's clock runs.
status window::get_ready(const window_plan& plan, cpu_team& team) {
  for (const auto& one : on_gpus_) {
    if (auto ready = one.copier->select(); !ready) return ready;
    if (auto queued = one.copier->enqueue_copies(plan.warm_up); !queued) return queued;
  }
  if (auto warm = wait(plan, nullptr); !warm) return warm;
  for (const auto& one : on_cpus_) team.add(*one.copier, plan.copies[one.transfer], plan.warm_up);
  const std::uint64_t deadline_ns = monotonic_ns() + plan.timeout_s * kSecondNs;
  while (!team.is_ready()) {
    if (monotonic_ns() > deadline_ns)
      return failure{ETIMEDOUT,
                     format("the CPU's transfers did not warm up within %u s: a smaller -b takes less", plan.timeout_s)};
    nap();
  }
  if (!team.has_failed()) return {};
  team.stop();
  return team.join();
}

status window::enqueue_unchained(const window_plan& plan) {
  for (const auto& [transfer, copier, seen] : on_gpus_) {
    if (auto held = hold(plan, *copier); !held) return held;
    if (auto marked = copier->record(gpu_copier::mark::start); !marked) return marked;
    if (auto queued = copier->enqueue_copies(plan.copies[transfer]); !queued) return queued;
    if (auto marked = copier->record(gpu_copier::mark::end); !marked) return marked;
  }
  return {};
}

result<window_timing> window::time_by_cpu(const cpu_team& team, std::uint64_t release_ns) {
  window_timing out;
  out.own_ns.resize(on_gpus_.size() + on_cpus_.size());
  std::uint64_t last_start_ns = release_ns;
  std::uint64_t first_end_ns = UINT64_MAX;
  std::uint64_t last_end_ns = release_ns;
  const auto note = [&](std::uint64_t start_ns, std::uint64_t end_ns) {
    last_start_ns = std::max(last_start_ns, start_ns);
    first_end_ns = std::min(first_end_ns, end_ns);
    last_end_ns = std::max(last_end_ns, end_ns);
  };
  auto member = team.members().begin();
  for (const auto& one : on_cpus_) {
    out.own_ns[one.transfer] = static_cast<double>(member->end_ns - member->start_ns);
    note(member->start_ns, member->end_ns);
    ++member;
  }
  for (const auto& one : on_gpus_) {
    const auto own = one.copier->elapsed_ns(gpu_copier::mark::start, gpu_copier::mark::end);
    if (!own) return own.error();
    out.own_ns[one.transfer] = *own;
    note(release_ns, one.seen_ended_ns);
  }
  out.window_ns = static_cast<double>(last_end_ns - release_ns);
  if (first_end_ns > last_start_ns) out.all_ran_ns = static_cast<double>(first_end_ns - last_start_ns);
  return out;
}

// ---- Both -----------------------------------------------------------------------------------------------------------

// Selects the copier's GPU too.
status window::hold(const window_plan& plan, gpu_copier& copier) {
  if (auto ready = copier.select(); !ready || !plan.is_held) return ready;
  return gate_->hold(copier.gpu(), copier.stream());
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

// Waits until all have ended and records each GPU's end. With a `team` it polls without pause, because those times count.
status window::wait(const window_plan& plan, cpu_team* team) {
  const std::uint64_t deadline_ns = monotonic_ns() + plan.timeout_s * kSecondNs;
  for (auto& one : on_gpus_) one.seen_ended_ns = 0;
  for (;;) {
    int slow_gpu = -1;
    for (auto& one : on_gpus_) {
      if (one.seen_ended_ns != 0) continue;
      const status now = one.copier->finished();
      if (now) one.seen_ended_ns = monotonic_ns();
      else if (now.code() != EAGAIN) return now;
      else slow_gpu = one.copier->gpu();
    }
    if (slow_gpu < 0 && (team == nullptr || team->has_ended())) return {};
    if (monotonic_ns() > deadline_ns)
      return failure{ETIMEDOUT,
                     format("%s did not end its transfers within %u s: a smaller -b or fewer copies take less; `dmesg | "
                            "grep -i xid` shows whether a GPU is stuck",
                            slow_gpu < 0 ? "the CPU" : format("GPU %d", slow_gpu).c_str(), plan.timeout_s)};
    if (team != nullptr && slow_gpu >= 0) sched_yield();
    else nap();
  }
}

// After a failure: waits for everything that was enqueued.
void window::drain(unsigned timeout_s) {
  if (gate_) gate_->open();
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_s * kSecondNs;
  while (is_busy() && monotonic_ns() < deadline_ns) nap();
}

}  // namespace pl::bandwidth
