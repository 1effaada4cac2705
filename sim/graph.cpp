// SPDX-License-Identifier: Apache-2.0
#include "sim/graph.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/clock.hpp"
#include "sim/capture.hpp"
#include "sim/event.hpp"

namespace pl::sim {
namespace {

using graph_table = handle_table<graph, graph_t, 9>;
using node_table = handle_table<const graph_node, graph_node_t, 10>;

graph_table& graphs() {
  static auto* const instance = new graph_table;
  return *instance;
}

node_table& nodes() {
  static auto* const instance = new node_table;
  return *instance;
}

// What one launch runs: the nodes as they were at that moment, cut into branches. The nodes of a branch run one after the
// other; branches run at the same time, as far as dependencies between them allow.
struct plan {
  struct step {
    graph_node_ref node;
    std::vector<std::size_t> after;  // steps of other branches
    std::shared_ptr<const plan> inside;
  };
  std::vector<step> steps;
  std::vector<std::vector<std::size_t>> branches;
  kept_objects objects;
  std::vector<std::shared_ptr<condition>> conditions;  // also those of graphs inside
};

struct graph_exec {
  std::mutex launching;  // one launch at a time is being queued
  std::shared_ptr<const plan> now;
  std::vector<std::shared_ptr<stream>> branches;  // for all branches but the first, which runs in the launch's own stream
  context_ref ctx;                                // where `branches` belong
  stream::dependency last{nullptr, 0};            // a launch waits for the one before it
};

handle_table<graph_exec, graph_exec_t, 11>& execs() {
  static auto* const instance = new handle_table<graph_exec, graph_exec_t, 11>;
  return *instance;
}

// A node continues the branch of the first node it depends on that nothing continues yet.
std::shared_ptr<plan> make_plan(const graph& source) {
  auto made = std::make_shared<plan>(plan{{}, {}, source.objects, source.conditions});
  std::unordered_map<graph_node_t, std::size_t> index;
  std::vector<std::size_t> branch_of;
  for (const auto& node : source.nodes) {
    const std::size_t step_index = made->steps.size();
    std::size_t branch = made->branches.size();
    for (const graph_node_t before : node->after)
      if (const auto l = branch_of[index[before]];
          branch == made->branches.size() && made->branches[l].back() == index[before])
        branch = l;
    if (branch == made->branches.size()) made->branches.emplace_back();
    plan::step step{node, {}, {}};
    if (node->inside != nullptr) {
      step.inside = make_plan(*node->inside);
      made->conditions.insert(made->conditions.end(), step.inside->conditions.begin(), step.inside->conditions.end());
    }
    for (const graph_node_t before : node->after)
      if (branch_of[index[before]] != branch) step.after.push_back(index[before]);
    made->branches[branch].push_back(step_index);
    made->steps.push_back(std::move(step));
    index[node->handle] = step_index;
    branch_of.push_back(branch);
  }
  return made;
}

// One launch under way.
class run {
 public:
  // Events that nodes record are recorded by the launch: who waits for them from now on waits for this run.
  explicit run(std::shared_ptr<const plan> graph_plan)
      : plan_(std::move(graph_plan)), recordings_(plan_->steps.size()), done_(plan_->steps.size()) {
    for (std::size_t i = 0; i < recordings_.size(); ++i) {
      const graph_node& node = *plan_->steps[i].node;
      if (node.external != nullptr)
        recordings_[i] =
            node.type == graph_node_type::event_record ? node.external->make_latest() : node.external->current();
    }
  }

  // The launch begins: conditions get the values that it gives them.
  void set_conditions() const {
    for (const auto& each : plan_->conditions)
      if (each->is_set_by_launch) each->value.store(each->launch_value, std::memory_order_release);
  }

  // All steps, one after the other in the order in which they were added, which no dependency contradicts.
  void run_in_order() {
    for (std::size_t i = 0; i < plan_->steps.size(); ++i) run_step(i);
  }

  void run_branch(std::size_t branch) {
    for (const std::size_t step_index : plan_->branches[branch]) {
      const auto& step = plan_->steps[step_index];
      for (const std::size_t before : step.after) wait_for(before);
      run_step(step_index);
      const std::lock_guard lock(mutex_);
      done_[step_index] = true;
      changed_.notify_all();
    }
  }
  void wait_for_all() {
    for (const auto& branch : plan_->branches) wait_for(branch.back());
  }

 private:
  void run_step(std::size_t step_index) {
    const graph_node& node = *plan_->steps[step_index].node;
    const context_state& fate = *node.ctx->fate;
    random_delay();
    if (node.type == graph_node_type::event_record) order_stores(), recordings_[step_index]->pass(monotonic_ns());
    else if (node.type == graph_node_type::event_wait) {
      if (recordings_[step_index] != nullptr) recordings_[step_index]->wait_unless(fate.stopped);
    } else if (const auto& inside = plan_->steps[step_index].inside; inside != nullptr) {
      if (node.repeats == nullptr) run(inside).run_in_order();
      else
        while (!fate.ended() && node.repeats->value.load(std::memory_order_acquire) != 0) run(inside).run_in_order();
    } else if (!fate.ended()) node.work();
    if (plan_->branches.size() > 1) order_stores();  // another branch may follow
  }
  void wait_for(std::size_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[step]; });
  }

  const std::shared_ptr<const plan> plan_;
  std::vector<std::shared_ptr<recording>> recordings_;  // of the steps that record or await an event
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
};

void start_branches(graph_exec& exec, const context_ref& ctx, const std::shared_ptr<const plan>& graph_plan,
                    std::shared_ptr<run>& out) {
  if (exec.ctx != ctx) exec.branches.clear();
  exec.ctx = ctx;
  while (exec.branches.size() + 1 < graph_plan->branches.size())
    exec.branches.push_back(
        std::make_shared<stream>(ctx->handle, ctx->fate, ctx->gpu->ordinal, stream_flag::non_blocking, 0));
  out = std::make_shared<run>(graph_plan);
}

// A body takes nothing that needs more of the GPU than kernels and copies do: no memory operations, events, host functions.
bool can_run_in_body(const graph& body) {
  using namespace graph_node_type;
  return std::all_of(body.nodes.begin(), body.nodes.end(), [](const graph_node_ref& node) {
    const bool is_allowed = node->type == kernel || node->type == memcpy || node->type == memset || node->inside != nullptr;
    return is_allowed && (node->inside == nullptr || can_run_in_body(*node->inside));
  });
}

bool can_bodies_run(const graph& source) {
  return std::all_of(source.nodes.begin(), source.nodes.end(), [](const graph_node_ref& node) {
    return node->type != graph_node_type::conditional || can_run_in_body(*node->inside);
  });
}

result_t instantiate(graph_exec_t* out, graph_t handle, unsigned long long flags) {
  constexpr unsigned long long kAutoFree = 1, kNodePriority = 8;  // change nothing here
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto source = find_graph(handle);
  if (out == nullptr || source == nullptr || (flags & ~(kAutoFree | kNodePriority)) != 0) return code::invalid_value;
  auto made = std::make_shared<graph_exec>();
  {
    const std::lock_guard lock(graph_mutex());
    if (source->owner != nullptr) return code::invalid_value;
    if (std::any_of(source->conditions.begin(), source->conditions.end(), [](const auto& each) { return !each->has_node; }))
      return code::invalid_value;
    if (!can_bodies_run(*source)) return code::not_supported;
    made->now = make_plan(*source);
  }
  *out = execs().insert(std::move(made));
  return code::success;
}

}  // namespace

std::mutex& graph_mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

std::shared_ptr<graph> make_graph() {
  auto made = std::make_shared<graph>();
  made->handle = graphs().new_handle();
  graphs().assign(made->handle, made);
  return made;
}

std::shared_ptr<graph> find_graph(graph_t handle) { return graphs().find(handle); }
graph_node_ref find_node(graph_node_t handle) { return nodes().find(handle); }

bool end_graph(graph_t handle) {
  const auto ended = graphs().remove(handle);
  if (ended == nullptr) return false;
  nodes().remove_if([&](const graph_node& n) { return n.graph == handle; });
  std::vector<graph_t> bodies;
  {
    const std::lock_guard lock(graph_mutex());
    for (const auto& node : ended->nodes)
      if (node->type == graph_node_type::conditional) bodies.push_back(node->inside->handle);
  }
  for (const graph_t body : bodies) end_graph(body);
  return true;
}

graph_node_ref add_node_locked(graph& target, graph_node made) {
  made.graph = target.handle;
  made.handle = nodes().new_handle();
  auto added = std::make_shared<const graph_node>(std::move(made));
  nodes().assign(added->handle, added);
  target.nodes.push_back(added);
  return added;
}

PL_SIM_API cuGraphCreate(graph_t* out, unsigned flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr || flags != 0) return code::invalid_value;
  *out = make_graph()->handle;
  return code::success;
}

PL_SIM_API cuGraphDestroy(graph_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (is_being_captured(handle)) return code::invalid_value;
  if (const auto found = find_graph(handle); found != nullptr && found->owner != nullptr) return code::invalid_value;
  return end_graph(handle) ? code::success : code::invalid_value;
}

PL_SIM_API cuGraphGetNodes(graph_t handle, graph_node_t* out, std::size_t* count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto found = find_graph(handle);
  if (found == nullptr || count == nullptr) return code::invalid_value;
  const std::lock_guard lock(graph_mutex());
  if (out != nullptr) {
    const std::size_t room = *count;
    for (std::size_t i = 0; i < room; ++i) out[i] = i < found->nodes.size() ? found->nodes[i]->handle : nullptr;
    *count = std::min(room, found->nodes.size());
  } else {
    *count = found->nodes.size();
  }
  return code::success;
}

PL_SIM_API cuGraphNodeGetType(graph_node_t handle, int* type) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto found = find_node(handle);
  if (found == nullptr || type == nullptr) return code::invalid_value;
  *type = found->type;
  return code::success;
}

PL_SIM_API cuGraphAddBatchMemOpNode(graph_node_t* out, graph_t handle, const graph_node_t* after, std::size_t count,
                                    const batch_mem_op_node_params* params) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto target = find_graph(handle);
  if (out == nullptr || target == nullptr || params == nullptr || (count != 0 && after == nullptr))
    return code::invalid_value;
  graph_node made;
  made.type = graph_node_type::batch_mem_op;
  made.ctx = find_context(params->context);
  if (made.ctx == nullptr) return code::invalid_context;
  if (const auto rc = make_batch(made.ctx, params->count, params->ops, params->flags, made.work); rc != code::success)
    return rc;
  for (std::size_t i = 0; i < count; ++i) {
    const auto before = find_node(after[i]);
    if (before == nullptr || before->graph != handle) return code::invalid_value;
    made.after.push_back(after[i]);
  }
  const std::lock_guard lock(graph_mutex());
  *out = add_node_locked(*target, std::move(made))->handle;
  return code::success;
}

PL_SIM_API cuGraphInstantiateWithFlags(graph_exec_t* out, graph_t handle, unsigned long long flags) {
  return instantiate(out, handle, flags);
}

// The forms before CUDA 12 also tell which node is wrong; none can be.
PL_SIM_API cuGraphInstantiate(graph_exec_t* out, graph_t handle, graph_node_t* error_node, char* log,
                              std::size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = 0;
  return instantiate(out, handle, 0);
}
PL_SIM_API cuGraphInstantiate_v2(graph_exec_t* out, graph_t handle, graph_node_t* error_node, char* log,
                                 std::size_t log_bytes) {
  return cuGraphInstantiate(out, handle, error_node, log, log_bytes);
}

// Later launches have the new operations; one that is queued or under way keeps the old ones.
PL_SIM_API cuGraphExecBatchMemOpNodeSetParams(graph_exec_t handle, graph_node_t node,
                                              const batch_mem_op_node_params* params) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto exec = execs().find(handle);
  if (exec == nullptr || params == nullptr) return code::invalid_value;
  const auto ctx = find_context(params->context);
  if (ctx == nullptr) return code::invalid_context;
  const std::lock_guard lock(exec->launching);
  auto changed = std::make_shared<plan>(*exec->now);
  const auto step = std::find_if(changed->steps.begin(), changed->steps.end(),
                                 [&](const plan::step& s) { return s.node->handle == node; });
  if (step == changed->steps.end() || step->node->type != graph_node_type::batch_mem_op || step->node->ctx != ctx)
    return code::invalid_value;
  auto made = std::make_shared<graph_node>(*step->node);
  if (const auto rc = make_batch(ctx, params->count, params->ops, params->flags, made->work); rc != code::success) return rc;
  step->node = std::move(made);
  exec->now = std::move(changed);
  return code::success;
}

PL_SIM_API cuGraphUpload(graph_exec_t handle, stream_t stream_handle) {
  const auto s = enter_stream(stream_handle);
  if (!s) return s.rc;
  return execs().find(handle) != nullptr ? code::success : code::invalid_value;
}

PL_SIM_API cuGraphLaunch(graph_exec_t handle, stream_t stream_handle) {
  const auto s = enter_stream(stream_handle);
  if (!s) return s.rc;
  const auto exec = execs().find(handle);
  if (exec == nullptr) return code::invalid_value;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  const std::lock_guard lock(exec->launching);
  const auto graph_plan = exec->now;
  std::shared_ptr<run> started;
  start_branches(*exec, s.ctx, graph_plan, started);
  stream::ticket queued = 0;
  const auto before = exec->last;
  const auto rc = enqueue(
      s, graph_node_type::kernel,
      [started, before, branches = exec->branches, count = graph_plan->branches.size()] {
        if (before.target_stream != nullptr) before.target_stream->wait(before.position);
        started->set_conditions();
        for (std::size_t branch = 1; branch < count; ++branch)
          branches[branch - 1]->submit(
              {}, [started, branch] { started->run_branch(branch); }, true);
        if (count != 0) started->run_branch(0);
        started->wait_for_all();
      },
      true, &queued);
  if (rc == code::success) exec->last = {s.target_stream, queued};
  return rc;
}

// A launch under way keeps what it needs.
PL_SIM_API cuGraphExecDestroy(graph_exec_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  return execs().remove(handle) != nullptr ? code::success : code::invalid_value;
}

}  // namespace pl::sim
