// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/graph_loop.hpp"

#include <dlfcn.h>

#include <cerrno>

#include "cuda/kernel_image.hpp"
#include "graph_loop_image.hpp"

namespace pl::async {

graph_loop::graph_loop(const tools::gpu_session& gpu, cu::stream_t stream)
    : gpu_(&gpu), stream_(stream), left_(gpu, sizeof(std::uint64_t)) {}

graph_loop::graph_loop(graph_loop&& other) noexcept
    : gpu_(other.gpu_),
      stream_(other.stream_),
      left_(std::move(other.left_)),
      module_(std::exchange(other.module_, nullptr)),
      step_(other.step_),
      graph_(std::exchange(other.graph_, nullptr)),
      exec_(std::exchange(other.exec_, nullptr)) {}

graph_loop::~graph_loop() {
  const auto& cuda = gpu_->cuda();
  if (module_ != nullptr) static_cast<void>(cuda.cuStreamSynchronize(stream_));
  if (exec_ != nullptr) static_cast<void>(cuda.cuGraphExecDestroy(exec_));
  if (graph_ != nullptr) static_cast<void>(cuda.cuGraphDestroy(graph_));
  if (module_ != nullptr) static_cast<void>(cuda.cuModuleUnload(module_));
}

result<graph_loop> graph_loop::make(const tools::gpu_session& gpu, cu::stream_t stream,
                                    const std::function<status()>& queue) {
  const auto loops = find_calls(gpu.cuda());
  if (!loops) return loops.error();
  graph_loop made(gpu, stream);
  if (const auto built = made.build(*loops, queue); !built) return built.error();
  return made;
}

result<cu::loop_calls> graph_loop::find_calls(const cu::driver_table& cuda) {
  cu::loop_calls out;
  bool is_complete = true;
#define PL_LOOP_CALL(name, params)                                             \
  out.name = reinterpret_cast<decltype(out.name)>(dlsym(cuda.library, #name)); \
  is_complete = is_complete && out.name != nullptr;
  PL_CUDA_LOOP_FUNCTIONS(PL_LOOP_CALL)
#undef PL_LOOP_CALL
  if (!is_complete) return failure{ENOTSUP, "loops in graphs need a driver of CUDA 12.4 or newer"};
  return out;
}

// The repeated part is captured separately and becomes a child of the body, so that the driver keeps what a capture
// references, as it documents for children.
status graph_loop::build(const cu::loop_calls& loops, const std::function<status()>& queue) {
  const auto& cuda = gpu_->cuda();
  auto loaded = cu::load_kernels(cuda, kernels::graph_loop());
  if (!loaded) return failure{ENOTSUP, loaded.error().message + " (the kernel that ends a loop's passes)"};
  module_ = *loaded;
  auto found = cu::find_kernel(cuda, module_, "graph_loop_step");
  if (!found) return found.error();
  step_ = *found;
  cu::context_t context = nullptr;
  cu::graph_condition_t condition = 0;
  gpu_->check(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  gpu_->check(cuda.cuGraphCreate(&graph_, 0), "cuGraphCreate");
  auto rc = loops.cuGraphConditionalHandleCreate(&condition, graph_, context, 1, cu::graph_condition_flag::assign_default);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "the condition of a graph's loop");
  cu::conditional_node_params loop{};
  loop.type = cu::graph_node_type::conditional;
  loop.handle = condition;
  loop.condition = cu::graph_condition::repeat_while;
  loop.count = 1;
  loop.context = context;
  cu::graph_node_t node = nullptr, child = nullptr;
  rc = loops.cuGraphAddNode_v2(&node, graph_, nullptr, nullptr, 0, &loop);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "a WHILE node");
  auto pass = capture(queue, condition);
  if (!pass) return pass.error();
  rc = loops.cuGraphAddChildGraphNode(&child, loop.bodies[0], nullptr, 0, *pass);
  static_cast<void>(cuda.cuGraphDestroy(*pass));
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "the body of a WHILE node");
  rc = cuda.cuGraphInstantiateWithFlags(&exec_, graph_, 0);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "the graph of a loop");
  return {};
}

result<cu::graph_t> graph_loop::capture(const std::function<status()>& queue, cu::graph_condition_t condition) const {
  const auto& cuda = gpu_->cuda();
  gpu_->check(cuda.cuStreamBeginCapture_v2(stream_, cu::capture_mode::relaxed), "cuStreamBeginCapture");
  auto queued = queue();
  std::uint64_t left = left_.get();
  void* params[] = {&condition, &left};
  auto rc = queued ? cuda.cuLaunchKernel(step_, 1, 1, 1, 1, 1, 1, 0, stream_, params, nullptr) : cu::error_code::success;
  cu::graph_t made = nullptr;
  const auto ended = cuda.cuStreamEndCapture(stream_, &made);
  if (rc == cu::error_code::success) rc = ended;
  if (queued && rc == cu::error_code::success) return made;
  if (made != nullptr) static_cast<void>(cuda.cuGraphDestroy(made));
  if (!queued) return queued.error();
  return cu::make_error(cuda, rc, "one pass of a loop");
}

void graph_loop::launch(std::uint64_t passes) const {
  const auto& cuda = gpu_->cuda();
  gpu_->check(cuda.cuStreamWriteValue64_v2(stream_, left_.get(), passes, 0), "cuStreamWriteValue64");
  gpu_->check(cuda.cuGraphLaunch(exec_, stream_), "cuGraphLaunch");
}

}  // namespace pl::async
