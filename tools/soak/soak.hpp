// SPDX-License-Identifier: Apache-2.0
// What the parts of `peerlane soak` share: the plan of a run, when it ends, and what was seen. The seed decides what each
// part does; when things meet is the operating system's choice, so a seed repeats the pressure and not the interleaving.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "tools/common/command_process.hpp"

namespace pl::soak {

using tools::command_process;
using tools::state_text;

// Nothing that is undisturbed may stand still for longer, and nothing that ends may take longer to. A hang lasts for ever,
// so a long limit misses none; on a machine whose CPUs are shared, each step may have to wait for them.
inline constexpr std::uint64_t kHungMs = 300'000;

struct plan {
  std::uint64_t seed = 1;
  std::uint64_t end_ns = 0;            // monotonic_ns() at which parts stop to begin new work
  bool (*is_interrupted)() = nullptr;  // a signal asks for the end; may be null
  int gpu = 0;                         // that mappings are of
  std::string folder;                  // of this run: logs, and folders of the parts
  std::string disk;                    // where the store's folder is: a small disk of its own, if there is one
  bool has_small_disk = false;
  std::string why_no_small_disk;
};

// Counters and violations of one part. Any thread.
class findings {
 public:
  explicit findings(std::string part) : part_(std::move(part)) {}

  void count(const std::string& name, std::uint64_t more = 1) {
    touch();
    const std::lock_guard hold(mutex_);
    counters_[name] += more;
  }
  // A guarantee did not hold. The text says what was expected and what was seen.
  void violation(const std::string& text);
  // The part goes on, although it has nothing to count.
  void touch() { last_sign_ns_.store(monotonic_ns(), std::memory_order_relaxed); }
  std::uint64_t last_sign_ns() const { return last_sign_ns_.load(std::memory_order_relaxed); }

  const std::string& part() const { return part_; }
  std::map<std::string, std::uint64_t> counters() const {
    const std::lock_guard hold(mutex_);
    return counters_;
  }
  std::vector<std::string> violations() const {
    const std::lock_guard hold(mutex_);
    return violations_;
  }

 private:
  static constexpr std::size_t kMaxKept = 50;  // more of them are a pattern that the first ones show
  std::string part_;
  std::atomic<std::uint64_t> last_sign_ns_{monotonic_ns()};
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> counters_;
  std::vector<std::string> violations_;
};

bool is_interrupted(const plan& run);
// The time has passed, or the run was interrupted.
bool is_over(const plan& run);
// Sleeps that long, or until the end of the run.
void pause_ms(const plan& run, std::uint64_t milliseconds);
// Waits for the end of a process of this part, for `milliseconds` at most; an interrupted run kills it. As
// command_process::wait_ms.
std::optional<int> wait_for(const plan& run, findings& seen, command_process& process, std::uint64_t milliseconds);

// The parts; each returns when the run is over and everything that it started has ended.
void run_store(const plan& run, findings& seen);
void run_messages(const plan& run, findings& seen);
void run_mappings(const plan& run, findings& seen);

// The process of the mappings' part, started by run_mappings: changes mapped memory at random for `seconds` and compares it
// with what it shall be. Returns an exit code.
int run_mapping_worker(int gpu, std::uint64_t seed, std::uint64_t seconds);

}  // namespace pl::soak
