// SPDX-License-Identifier: Apache-2.0
// Work of a stream, captured once, which one launch repeats as often as asked: the body of a WHILE node, whose
// last kernel counts. Between the passes there is no CPU and no launch.
#pragma once

#include <functional>
#include <utility>

#include "base/status.hpp"
#include "cuda/graph_conditions.hpp"
#include "tools/common/gpu.hpp"

namespace pl::async {

// Must end before the channels whose operations it holds.
class graph_loop {
 public:
  // `queue` queues on the stream, which is being captured: kernels and copies, since a body takes no operations of
  // the front end. Its error, or the driver's; ENOTSUP: no such nodes in this driver, or no kernel for this GPU in the
  // build.
  static result<graph_loop> make(const tools::gpu_session& gpu, cu::stream_t stream, const std::function<status()>& queue);
  graph_loop(graph_loop&& other) noexcept;
  graph_loop& operator=(graph_loop&&) = delete;
  ~graph_loop();  // waits for the stream

  void launch(std::uint64_t passes) const;  // at least one; throws tools::tool_failure

 private:
  graph_loop(const tools::gpu_session& gpu, cu::stream_t stream);
  static result<cu::loop_calls> find_calls(const cu::driver_table& cuda);
  status build(const cu::loop_calls& loops, const std::function<status()>& queue);
  result<cu::graph_t> capture(const std::function<status()>& queue, cu::graph_condition_t condition) const;

  const tools::gpu_session* gpu_;
  cu::stream_t stream_;
  tools::device_memory left_;  // passes that are still to be made
  cu::module_t module_ = nullptr;
  cu::function_t step_ = nullptr;
  cu::graph_t graph_ = nullptr;
  cu::graph_exec_t exec_ = nullptr;
};

}  // namespace pl::async
