// SPDX-License-Identifier: Apache-2.0
// The contenders of `peerlane blocks`: each moves the same list of blocks in its own way.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/blocks/block_arena.hpp"
#include "tools/common/kernel_module.hpp"
#include "tools/common/planner_session.hpp"

namespace pl::tools {

// One list in flight at a time. Failures throw.
class block_mover {
 public:
  virtual ~block_mover() = default;
  block_mover() = default;
  block_mover(const block_mover&) = delete;
  block_mover& operator=(const block_mover&) = delete;
  // Takes the list on: what a program does once for a list, not what it does for each move. `list` must outlive the moves.
  virtual void take(const block_list& list) = 0;
  virtual void submit() = 0;  // returns when the CPU is free again
  virtual void finish() = 0;  // waits until the bytes are there
  void move() {
    submit();
    finish();
  }
};

// Ways to move a list, by the names of tables and result files.
inline constexpr const char* kOurs = "peerlane";
inline constexpr const char* kBatch = "cuMemcpyBatchAsync";
inline constexpr const char* kEach = "cuMemcpyAsync";
inline constexpr const char* kGatherFew = "gather 16 SMs";
inline constexpr const char* kGatherAll = "gather all SMs";

struct mover_set {
  explicit mover_set(const gpu_session& session);
  // Null if it is not possible on this machine; why_not says why.
  std::unique_ptr<block_mover> make(const std::string& name);
  std::vector<std::string> names() const { return {kOurs, kBatch, kEach, kGatherFew, kGatherAll}; }

  const gpu_session& gpu;
  planner_session planner;
  std::optional<kernel_module> gather;
  std::string why_not;  // of the last make() that failed
};

}  // namespace pl::tools
