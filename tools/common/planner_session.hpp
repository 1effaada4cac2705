// SPDX-License-Identifier: Apache-2.0
// A copy planner for one tool, set up from the environment, and the wait until its copy kernel accepts copies.
#pragma once

#include <memory>
#include <optional>

#include "copy/planner.hpp"
#include "tools/common/device_block.hpp"

namespace pl::tools {

class planner_session {
 public:
  // Opens and prepares everything for this GPU. Throws if copies are not possible at all.
  explicit planner_session(const gpu_session& gpu,
                           const copy::planner::options& wanted = copy::planner::options_from_environment());

  copy::planner& operator*() const { return *planner_; }
  copy::planner* operator->() const { return planner_.get(); }

  // Keeps the copy kernel hot until let_go(), and waits until it takes copies. Returns false if that is impossible; see
  // why_not().
  bool hold();
  void let_go() { hold_.reset(); }
  const std::string& why_not() const { return why_not_; }

 private:
  bool takes_a_copy();
  const gpu_session& gpu_;
  host_memory probe_host_;
  device_block probe_device_;
  std::unique_ptr<copy::planner> planner_;
  std::optional<copy::gpu_engine::hold> hold_;
  std::string why_not_;
};

}  // namespace pl::tools
