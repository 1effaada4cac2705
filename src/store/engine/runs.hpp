// SPDX-License-Identifier: Apache-2.0
// Runs: grants or pins of many values by one call, with consecutive numbers. The locks that single calls take for each
// value are taken once per run, or once for each shard of the table.
//
//   begin_run ─▶ the writer fills the memory ─▶ commit_run
//   pin_run   ─▶ the reader reads            ─▶ unpin_run
//
// Each value of a run has its own outcome, as if it had been requested alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/engine/segment_list.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

struct run_put {
  std::string_view key;
  std::uint64_t length_bytes = 0;
  bool is_wanted = true;  // otherwise it gets nothing, and its refusal is ECANCELED
  // The condition of the later commit, as in begin_options.
  condition precondition = condition::none;
  version_t expected_version = 0;
};

// The grant of value i has the number first + i, as engine::abort() and others take it.
struct granted_run {
  struct granted {
    failure refusal{0, {}};  // code 0: granted
    segment_list segments;   // in the value's order
    bool is_granted() const noexcept { return refusal.code == 0; }
  };
  grant_id first = 0;  // 0: nothing was granted
  std::vector<granted> values;
};

// Options that all values of a run share, and those of each value.
struct run_options {
  // `put.request` is the first value's; value i has its sequence + i. put.ttl_ms applies to values without one.
  put_options put{};
  bool take_crc = false;  // as in commit_options
  // Runs work that can wait until after the next commit, such as releasing replaced values. It may call the task at
  // once, or later on any thread, but before the engine is closed. Empty: the work is done at once.
  std::function<void(std::function<void()> task)> afterwards{};
};
struct run_commit {
  condition precondition = condition::none;
  version_t expected_version = 0;
  std::uint32_t user_flags = 0;
  std::uint64_t ttl_ms = 0;
  std::uint32_t crc32c = 0;
  std::uint16_t request_group = 0;  // request_key::group
  bool is_wanted = true;            // otherwise its grant, if any, is given up, and its outcome has no meaning
};
struct committed_value {
  failure refusal{0, {}};  // code 0: done
  put_result done;
  bool is_done() const noexcept { return refusal.code == 0; }
};
using run_completion = std::function<void(std::vector<committed_value>)>;

// The options of value `number`, for a commit of its own.
inline commit_options options_of(const run_options& run, const run_commit& one, std::size_t number) {
  commit_options out;
  out.put = run.put;
  out.put.precondition = one.precondition;
  out.put.expected_version = one.expected_version;
  out.put.user_flags = one.user_flags;
  if (one.ttl_ms != 0) out.put.ttl_ms = one.ttl_ms;
  if (!out.put.request.empty()) out.put.request.sequence += number;
  out.put.request.group = one.request_group;
  out.take_crc = run.take_crc;
  out.crc32c = one.crc32c;
  return out;
}

// Collects the outcomes of values that finish independently, on any threads; the last one answers.
class run_answer {
 public:
  run_answer(std::vector<committed_value> outcomes, std::size_t left, run_completion done)
      : outcomes_(std::move(outcomes)), left_(left), done_(std::move(done)) {}
  void note(std::size_t i, result<put_result> put) {
    if (put) outcomes_[i].done = *put;
    else outcomes_[i].refusal = std::move(put).error();
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_(std::move(outcomes_));
  }

 private:
  std::vector<committed_value> outcomes_;
  std::atomic<std::size_t> left_;
  run_completion done_;
};

// The pin of value i has the number first + i, as engine::unpin() takes it.
struct pinned_run {
  struct pinned {
    failure refusal{0, {}};  // code 0: pinned, or not requested
    bool is_pinned = false;  // neither pinned nor refused: it is not in memory, so use lookup_async()
    value_info info;
    segment_list segments;
  };
  pin_id first = 0;  // 0: nothing is pinned
  std::vector<pinned> values;
};

}  // namespace pl::store
