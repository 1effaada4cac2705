// SPDX-License-Identifier: Apache-2.0
// The states of the copy kernel during which other work is measured.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "tools/common/planner_session.hpp"

namespace pl::tools {

enum class engine_state {
  none,     // no planner, no engine
  expired,  // an engine that was used, its lease over
  held,     // resident and idle
  used,     // resident, and another thread copies by it without pause
};
inline constexpr std::array kEngineStates = {engine_state::none, engine_state::expired, engine_state::held,
                                             engine_state::used};
const char* name_of(engine_state state);

class engine_scenario {
 public:
  engine_scenario(const gpu_session& gpu, const copy::planner::options& wanted);
  ~engine_scenario() { stop_user(); }
  engine_scenario(const engine_scenario&) = delete;
  engine_scenario& operator=(const engine_scenario&) = delete;

  // Returns false if this machine has no engine; why_not() says why. `none` is always possible.
  bool enter(engine_state state);
  const std::string& why_not() const { return why_not_; }
  unsigned lease_us() const { return lease_us_; }
  // Copies that the user thread has made in all.
  std::uint64_t copies_beside() const { return copies_.load(); }

 private:
  void start_user();
  void stop_user();
  const gpu_session& gpu_;
  copy::planner::options wanted_;
  unsigned lease_us_;
  host_memory host_;
  device_block device_;
  std::optional<planner_session> planner_;
  std::string why_not_;
  std::thread user_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> copies_{0};
};

}  // namespace pl::tools
