// SPDX-License-Identifier: Apache-2.0
// Nodes that hold a graph: children, which run once, and WHILE nodes, whose body runs until a kernel sets its condition to
// 0.
#include "sim/graph.hpp"

namespace pl::sim {
namespace {

// 0 or the reason why a node cannot be added behind these.
result_t add_locked(graph& target, graph_node made, const graph_node_t* after, std::size_t count, graph_node_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto before = find_node(after[i]);
    if (before == nullptr || before->graph != target.handle) return code::invalid_value;
    made.after.push_back(after[i]);
  }
  *out = add_node_locked(target, std::move(made))->handle;
  return code::success;
}

bool has_condition(const graph& searched) {
  for (const auto& node : searched.nodes)
    if (node->type == graph_node_type::conditional || (node->inside != nullptr && has_condition(*node->inside))) return true;
  return !searched.conditions.empty();
}

std::shared_ptr<condition> take_condition_locked(graph& target, graph_condition_t handle) {
  for (const auto& each : target.conditions)
    if (reinterpret_cast<graph_condition_t>(&each->value) == handle && !each->has_node) return each;
  return nullptr;
}

}  // namespace

PL_SIM_API cuGraphConditionalHandleCreate(graph_condition_t* out, graph_t handle, context_t ctx, unsigned value,
                                          unsigned flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto target = find_graph(handle);
  if (out == nullptr || target == nullptr || (flags & ~graph_condition_flag::assign_default) != 0)
    return code::invalid_value;
  if (ctx != nullptr && find_context(ctx) == nullptr) return code::invalid_context;
  auto made = std::make_shared<condition>();
  made->launch_value = value;
  made->is_set_by_launch = (flags & graph_condition_flag::assign_default) != 0;
  *out = reinterpret_cast<graph_condition_t>(&made->value);
  const std::lock_guard lock(graph_mutex());
  target->conditions.push_back(std::move(made));
  return code::success;
}

// Of the types of nodes that this call takes, WHILE is here.
PL_SIM_API cuGraphAddNode_v2(graph_node_t* out, graph_t handle, const graph_node_t* after, const void* edges,
                             std::size_t count, void* params) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto target = find_graph(handle);
  auto* const wanted = static_cast<conditional_node_params*>(params);
  if (out == nullptr || target == nullptr || wanted == nullptr || (count != 0 && after == nullptr))
    return code::invalid_value;
  if (edges != nullptr || wanted->type != graph_node_type::conditional) return code::not_supported;
  if (wanted->condition != graph_condition::repeat_while) return code::not_supported;
  if (wanted->count != 1) return code::invalid_value;
  graph_node made;
  made.type = graph_node_type::conditional;
  made.ctx = find_context(wanted->context);
  if (made.ctx == nullptr) return code::invalid_context;
  const auto body = make_graph();
  result_t rc = code::invalid_value;
  {
    const std::lock_guard lock(graph_mutex());
    made.repeats = take_condition_locked(*target, wanted->handle);
    made.inside = body;
    body->owner = handle;
    if (made.repeats != nullptr) rc = add_locked(*target, made, after, count, out);
    if (rc == code::success) made.repeats->has_node = true;
  }
  if (rc != code::success) return end_graph(body->handle), rc;
  static_assert(sizeof(body->handle) == sizeof(void*));
  wanted->bodies = &body->handle;
  return code::success;
}

// The child is the graph as it is now.
PL_SIM_API cuGraphAddChildGraphNode(graph_node_t* out, graph_t handle, const graph_node_t* after, std::size_t count,
                                    graph_t child) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto target = find_graph(handle), source = find_graph(child);
  if (out == nullptr || target == nullptr || source == nullptr || target == source || (count != 0 && after == nullptr))
    return code::invalid_value;
  const std::lock_guard lock(graph_mutex());
  if (source->nodes.empty() || has_condition(*source)) return code::not_supported;
  graph_node made;
  made.type = graph_node_type::child_graph;
  made.ctx = source->nodes.front()->ctx;
  auto copy = std::make_shared<graph>(*source);
  copy->handle = nullptr;
  made.inside = std::move(copy);
  return add_locked(*target, std::move(made), after, count, out);
}

}  // namespace pl::sim
