// SPDX-License-Identifier: Apache-2.0
// Contenders (samples.hpp) whose operation may answer "not now": a copy by a copy kernel that has just left.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/text.hpp"
#include "copy/transfer.hpp"
#include "measure/samples.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {

// Counters for the calls of one contender. Must outlive it.
struct call_record {
  std::uint64_t done = 0;     // calls that copied, timed or not
  std::uint64_t misses = 0;   // timings that were thrown away because the answer was EAGAIN
  std::uint64_t dropped = 0;  // samples given up after kAttempts of them
};

struct sampling {
  std::size_t turn = 1;
  std::size_t calls_per_sample = 1;
  bool has_uncounted_call = true;  // before each turn; pointless, and dear, where a copy takes milliseconds
  std::uint64_t settle_ns = 0;     // that much of it: helper threads have gone to sleep during the other turns
  unsigned pause_us = 50;          // before a repetition, so that the engine can come back
};

constexpr unsigned kAttempts = 40;

// `operation` returns status. A sample that meets EAGAIN is repeated outside the clock; one given up is NaN, which
// drop_missing_samples removes. Any other failure ends the tool.
template <class Operation>
contender make_contender(const std::string& name, call_record& record, const sampling& sampling_options,
                         Operation operation) {
  const auto uncounted = [operation, &record, is_on = sampling_options.has_uncounted_call]() mutable {
    if (!is_on) return;
    if (const status done = operation()) ++record.done;
  };
  contender out(name, uncounted, sampling_options.turn);
  out.settle_ns = sampling_options.has_uncounted_call ? sampling_options.settle_ns : 0;
  out.sample_ns = [operation, &record, sampling_options, name]() mutable {
    for (unsigned attempt = 0; attempt < kAttempts; ++attempt) {
      status failed;
      std::size_t made = 0;
      const double taken_ns = time_once_ns([&] {
        for (; made < sampling_options.calls_per_sample; ++made)
          if (status done = operation(); !done) {
            failed = std::move(done);
            break;
          }
      });
      record.done += made;
      if (made == sampling_options.calls_per_sample) return taken_ns / static_cast<double>(made);
      if (failed.code() != EAGAIN) throw tool_failure(format("%s: %s", name.c_str(), failed.error().message.c_str()));
      ++record.misses;
      if (sampling_options.pause_us != 0) usleep(sampling_options.pause_us);
    }
    ++record.dropped;
    return std::numeric_limits<double>::quiet_NaN();
  };
  return out;
}

inline void drop_missing_samples(contender& one) {
  std::erase_if(one.samples_ns, [](double sample_ns) { return std::isnan(sample_ns); });
}

// Turns and batches by size, the same turn for all contenders of a size. In a turn the first copies find what the contender
// before has left: threads asleep, another's data in the caches.
inline sampling sampling_for(std::uint64_t bytes, bool is_short_store) {
  constexpr std::uint64_t kShort = 4096, kTurns = 64u << 10, kMiddle = 1u << 20, kLong = 512u << 20;
  sampling out;
  out.turn = bytes <= kTurns ? 4 : bytes <= kMiddle ? 2 : 1;
  out.calls_per_sample = is_short_store && bytes <= kShort ? 16 : 1;
  out.has_uncounted_call = bytes < kLong;
  // Where several threads copy for less time than they take to wake up (some 50 us).
  constexpr std::uint64_t kThreads = 8u << 10, kLongerThanWaking = 2u << 20, kSettleNs = 120'000;
  out.settle_ns = bytes >= kThreads && bytes <= kLongerThanWaking ? kSettleNs : 0;
  return out;
}

// Interleaved until the time is over or every contender has about `most` samples, but at least three rounds: a median of
// fewer says nothing. The order is another one in each round: who comes after a contender that wakes threads, or one that
// leaves the caches cold, must not always be the same one. It is the given order again on return.
inline void run_budget(std::vector<contender>& all, std::uint64_t budget_ns, std::size_t most, bool is_short) {
  constexpr std::size_t kMinRounds = 3;
  if (all.empty()) return;
  std::vector<std::string> names;
  for (const auto& one : all) names.push_back(one.name);
  std::minstd_rand random(1);
  const std::uint64_t begin_ns = monotonic_ns();
  const std::size_t most_rounds = std::max(kMinRounds, most / all[0].turn);
  run_interleaved(all, {.warm_up_rounds = is_short ? 1u : 0u, .rounds = 0, .budget_ns = 0});
  for (std::size_t rounds = 0; rounds < most_rounds && (rounds < kMinRounds || monotonic_ns() - begin_ns < budget_ns);) {
    std::shuffle(all.begin(), all.end(), random);
    rounds += run_interleaved(all, {.warm_up_rounds = 0, .rounds = 1, .budget_ns = 0});
  }
  const auto place = [&](const contender& one) { return std::find(names.begin(), names.end(), one.name) - names.begin(); };
  std::sort(all.begin(), all.end(), [&](const contender& a, const contender& b) { return place(a) < place(b); });
  for (auto& one : all) drop_missing_samples(one);
}

// Turns of two, which of them goes first left to chance, until the time is over, at least kMinPairs and at most
// kMaxPairs: a contender's mean of each turn, first that of `first`. A turn with a sample that was given up is left out.
inline std::vector<std::pair<double, double>> run_pairs(contender first, contender second, std::uint64_t budget_ns) {
  constexpr std::size_t kMinPairs = 15, kMaxPairs = 400, kMaxTurns = 2 * kMaxPairs;
  contender* order[] = {&first, &second};
  std::minstd_rand random(2);
  std::vector<std::pair<double, double>> out;
  const std::uint64_t begin_ns = monotonic_ns();
  const auto mean = [](const contender& measured) {
    return std::accumulate(measured.samples_ns.begin(), measured.samples_ns.end(), 0.0) /
           static_cast<double>(measured.samples_ns.size());
  };
  for (std::size_t turn = 0; turn < kMaxTurns && out.size() < kMaxPairs; ++turn) {
    if (out.size() >= kMinPairs && monotonic_ns() - begin_ns >= budget_ns) break;
    if (random() % 2 == 0) std::swap(order[0], order[1]);
    for (contender* const one : order) {
      one->samples_ns.clear();
      run_interleaved(std::span(one, 1), {.warm_up_rounds = 0, .rounds = 1, .budget_ns = 0});
    }
    if (const std::pair pair{mean(first), mean(second)}; !std::isnan(pair.first + pair.second)) out.push_back(pair);
  }
  return out;
}

}  // namespace pl::tools
