// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/captured_work.hpp"

namespace pl::async {

result<captured_work> captured_work::make(const bench_rank& session, const std::function<status()>& queue) {
  const auto& cuda = session.cuda();
  session.gpu().check(cuda.cuStreamBeginCapture_v2(session.stream(), cu::capture_mode::relaxed), "cuStreamBeginCapture");
  const auto queued = queue();
  cu::graph_t graph = nullptr;
  cu::graph_exec_t exec = nullptr;
  const auto ended = cuda.cuStreamEndCapture(session.stream(), &graph);
  const auto made = queued && ended == cu::error_code::success ? cuda.cuGraphInstantiateWithFlags(&exec, graph, 0) : ended;
  if (graph != nullptr) static_cast<void>(cuda.cuGraphDestroy(graph));
  if (!queued) return queued.error();
  if (made != cu::error_code::success) return cu::make_error(cuda, made, "the graph of a batch");
  return captured_work(session, exec);
}

captured_work::~captured_work() {
  if (exec_ == nullptr) return;
  static_cast<void>(session_->cuda().cuStreamSynchronize(session_->stream()));
  static_cast<void>(session_->cuda().cuGraphExecDestroy(exec_));
}

void captured_work::launch() const {
  session_->gpu().check(session_->cuda().cuGraphLaunch(exec_, session_->stream()), "cuGraphLaunch");
}

}  // namespace pl::async
