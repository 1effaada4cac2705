// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/runner.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "tools/bandwidth/copy_plan.hpp"
#include "tools/bandwidth/pattern.hpp"
#include "tools/bandwidth/transfer_check.hpp"
#include "tools/bandwidth/window.hpp"

namespace pl::bandwidth {
namespace {

std::uint64_t seed_of(std::uint64_t key, std::uint64_t seed, std::size_t sample) {
  return pattern_word(key, seed * 0x10001 + sample);
}

// Sources that several transfers read have one pattern, and those that are different have different ones.
std::uint64_t seed_of(const bound_transfer& transfer, std::uint64_t seed, std::size_t sample) {
  return seed_of(transfer.data_key != 0 ? transfer.data_key : transfer.source.address, seed, sample);
}

void add_mismatch(mismatch& sum, const mismatch& found) {
  if (found.bytes == 0) return;
  if (sum.bytes == 0 || found.first_offset < sum.first_offset) {
    sum.first_offset = found.first_offset;
    sum.expected = found.expected;
    sum.found = found.found;
  }
  sum.bytes += found.bytes;
  sum.flipped_bits |= found.flipped_bits;
}

double gb_per_s(std::uint64_t bytes, std::uint64_t copies, double ns, bool whole_microseconds) {
  if (!whole_microseconds) return static_cast<double>(bytes) * static_cast<double>(copies) / std::max(ns, 1.0);
  const auto us = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(ns / 1000));
  return static_cast<double>(static_cast<std::uint64_t>(static_cast<unsigned __int128>(bytes) * copies * 1'000'000 / us)) *
         1e-9;
}

// The rates of one sample. If it is known how far every transfer was when the first of them ended, only what they moved
// until then counts: which one ends last, and what it does alone after that, changes from sample to sample and is no
// simultaneous traffic.
void add_rates(std::span<const bound_transfer> transfers, const method& settings, std::span<const std::uint64_t> copies,
               const window_timing& sum, set_outcome& out) {
  const bool has_common_window = !sum.copies_while_all_ran.empty() && sum.all_ran_ns > 0;
  double total_bytes = 0;
  for (std::size_t t = 0; t < transfers.size(); ++t) {
    const double moved = static_cast<double>(transfers[t].bytes) *
                         (has_common_window ? sum.copies_while_all_ran[t] : static_cast<double>(copies[t]));
    out.each[t].own_gb_per_s.push_back(
        has_common_window ? moved / sum.all_ran_ns
                          : gb_per_s(transfers[t].bytes, copies[t], sum.own_ns[t], settings.whole_microseconds));
    if (transfers[t].measured) total_bytes += moved;
  }
  out.total_gb_per_s.push_back(total_bytes / std::max(has_common_window ? sum.all_ran_ns : sum.window_ns, 1.0));
}

// What run() was asked.
struct run_task {
  std::span<const bound_transfer> transfers;
  const method& settings;
  const run_hooks& hooks;
  std::span<const arrival> arrivals;
};

}  // namespace

struct runner::state {
  explicit state(gpu_set& all) : gpus(all), data(all), tools(all) {}
  gpu_set& gpus;
  pattern data;
  cpu_tools tools;
  // Windows whose work did not end in time. They are kept, and their GPUs stay unused, until it has.
  std::vector<std::unique_ptr<window>> left_behind;

  status check_left_behind(std::span<const bound_transfer> transfers);
  result<std::vector<std::uint64_t>> plan(window& work, std::span<const bound_transfer> transfers, const method& settings);
  status prepare_data(const run_task& task, std::size_t sample);
  result<mismatch> check_transfer(const bound_transfer& one, std::uint64_t seed);
  status check_data(const run_task& task, std::size_t sample, set_outcome& out);
  status run_sample(window& work, const run_task& task, std::span<const std::uint64_t> copies, set_outcome& out);
  result<set_outcome> run_samples(window& work, const run_task& task);
};

runner::runner(gpu_set& gpus) : state_(std::make_unique<state>(gpus)) {}
runner::~runner() = default;

status runner::state::check_left_behind(std::span<const bound_transfer> transfers) {
  std::erase_if(left_behind, [](auto& one) { return !one->is_busy(); });
  for (const auto& one : left_behind)
    for (const int gpu : one->gpus_in_use())
      for (const auto& transfer : transfers)
        if (transfer.executor.gpu == gpu)
          return failure{EIO,
                         format("GPU %d still works on transfers that did not end in time: it is left alone (`dmesg | grep "
                                "-i xid`, then a reset or reboot)",
                                gpu)};
  return {};
}

result<set_outcome> runner::run(std::span<const bound_transfer> transfers, const method& settings, const run_hooks& hooks,
                                std::span<const arrival> arrivals) {
  auto& self = *state_;
  if (auto good = check_transfers(self.gpus, transfers, settings.verify); !good) return good.error();
  if (auto free = self.check_left_behind(transfers); !free) return free.error();
  for (const auto& one : transfers)
    if (auto open = prepare_peer_access(self.gpus, one); !open) return open.error();
  auto work = window::make(self.gpus, self.tools, transfers);
  if (!work) return work.error();
  auto outcome = self.run_samples(**work, {transfers, settings, hooks, arrivals});
  if (!outcome && (*work)->is_busy()) self.left_behind.push_back(*std::move(work));
  return outcome;
}

result<set_outcome> runner::state::run_samples(window& work, const run_task& task) {
  const auto& transfers = task.transfers;
  set_outcome out;
  out.each.resize(transfers.size());
  out.arrived.resize(task.arrivals.size());
  const auto copies = plan(work, transfers, task.settings);
  if (!copies) return copies.error();
  for (std::size_t i = 0; i < transfers.size(); ++i) out.each[i].copies = static_cast<unsigned>((*copies)[i]);
  for (std::size_t sample = 0; sample < task.settings.samples; ++sample) {
    if (task.settings.verify)
      if (auto ready = prepare_data(task, sample); !ready) return ready.error();
    if (auto done = run_sample(work, task, *copies, out); !done) return done.error();
    for (std::size_t i = 0; i < transfers.size(); ++i) out.each[i].retries = work.retries(i);
    if (task.settings.verify)
      if (auto checked = check_data(task, sample, out); !checked) return checked.error();
  }
  return out;
}

// The first window has one copy of each and is not timed: what the driver loads or maps on first use is there afterwards.
result<std::vector<std::uint64_t>> runner::state::plan(window& work, std::span<const bound_transfer> transfers,
                                                       const method& settings) {
  std::vector<std::uint64_t> copies(transfers.size(), 1);
  window_plan probe{copies, 0, settings.timeout_s, nullptr, false};
  if (auto loaded = work.run(probe); !loaded) return loaded.error();
  if (!needs_probe(transfers, settings)) return wanted_copies(transfers, settings);
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i] = probe_copies(transfers[i], settings);
  probe.is_held = true;
  auto timed = work.run(probe);
  if (!timed) return timed.error();
  for (std::size_t i = 0; i < copies.size(); ++i) timed->own_ns[i] /= static_cast<double>(copies[i]);
  return balanced_copies(transfers, settings, timed->own_ns);
}

status runner::state::prepare_data(const run_task& task, std::size_t sample) {
  for (const auto& one : task.transfers) {
    const std::uint64_t seed = seed_of(one, task.settings.seed, sample);
    if (auto filled = data.fill(one.source, one.bytes, one.executor.gpu, seed); !filled) return filled;
    if (one.is_multicast) continue;
    if (one.executor.kind == executor_kind::sm_read) {
      if (auto cleared = data.clear_digests(one.destination); !cleared) return cleared;
      continue;
    }
    if (auto cleared = data.clear(one.destination, one.bytes, one.executor.gpu, seed); !cleared) return cleared;
  }
  for (const auto& one : task.arrivals)
    if (auto cleared =
            data.clear(one.view, one.bytes, one.view.location.index, seed_of(one.data_key, task.settings.seed, sample));
        !cleared)
      return cleared;
  return {};
}

result<mismatch> runner::state::check_transfer(const bound_transfer& one, std::uint64_t seed) {
  if (one.executor.kind == executor_kind::sm_read)
    return data.check_read(one.destination, one.bytes, one.executor.width, seed);
  if (one.executor.kind == executor_kind::sm_write) return data.check_write(one.destination, one.bytes, seed);
  return data.check(one.destination, one.bytes, one.executor.gpu, seed);
}

status runner::state::check_data(const run_task& task, std::size_t sample, set_outcome& out) {
  for (std::size_t i = 0; i < task.transfers.size(); ++i) {
    const auto& one = task.transfers[i];
    if (one.is_multicast) continue;
    const auto found = check_transfer(one, seed_of(one, task.settings.seed, sample));
    if (!found) return found.error();
    add_mismatch(out.each[i].wrong, *found);
  }
  for (std::size_t i = 0; i < task.arrivals.size(); ++i) {
    const auto& one = task.arrivals[i];
    const auto found =
        data.check(one.view, one.bytes, one.view.location.index, seed_of(one.data_key, task.settings.seed, sample));
    if (!found) return found.error();
    add_mismatch(out.arrived[i], *found);
  }
  return {};
}

status runner::state::run_sample(window& work, const run_task& task, std::span<const std::uint64_t> copies,
                                 set_outcome& out) {
  const auto& transfers = task.transfers;
  const auto& settings = task.settings;
  const auto& hooks = task.hooks;
  window_timing sum;
  sum.own_ns.resize(transfers.size());
  sum.copies_while_all_ran.resize(settings.balance && transfers.size() > 1 ? transfers.size() : 0);
  const std::uint64_t windows = windows_for(transfers, settings, copies);
  std::vector<std::uint64_t> part(copies.size());
  for (std::uint64_t i = 0; i < windows; ++i) {
    for (std::size_t t = 0; t < part.size(); ++t) part[t] = copies[t] * (i + 1) / windows - copies[t] * i / windows;
    const auto timed = work.run({part, settings.warm_up, settings.timeout_s, i == 0 ? &hooks.before_release : nullptr});
    if (!timed) return timed.error();
    for (std::size_t t = 0; t < part.size(); ++t) sum.own_ns[t] += timed->own_ns[t];
    sum.window_ns += timed->window_ns;
    sum.all_ran_ns += timed->all_ran_ns;
    if (timed->copies_while_all_ran.empty()) sum.copies_while_all_ran.clear();
    for (std::size_t t = 0; t < sum.copies_while_all_ran.size(); ++t)
      sum.copies_while_all_ran[t] += timed->copies_while_all_ran[t];
  }
  if (hooks.after_sample)
    if (auto agreed = hooks.after_sample(); !agreed) return agreed;
  add_rates(transfers, settings, copies, sum, out);
  out.overlap.push_back(sum.window_ns > 0 ? std::clamp(sum.all_ran_ns / sum.window_ns, 0.0, 1.0) : 0);
  return {};
}

}  // namespace pl::bandwidth
