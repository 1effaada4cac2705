// SPDX-License-Identifier: Apache-2.0
// Graphs: operations recorded once and launched often. A node holds the same action that the operation would have been
// in a stream, with the values of the moment of capture; it may run any number of times, also beside itself when two
// executables came from one graph.
//
// All graphs, captures and executables are guarded by graph_mutex(), which is taken after a context's mutexes.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/graph_conditions.hpp"
#include "sim/context.hpp"

namespace pl::sim {

std::mutex& graph_mutex();

struct user_object;  // user_object.cpp

// The references that a graph or an executable holds on user objects; given back with it.
class kept_objects {
 public:
  kept_objects() = default;
  kept_objects(const kept_objects& other);  // takes as many references
  kept_objects& operator=(const kept_objects&) = delete;
  ~kept_objects();
  void add(const std::shared_ptr<user_object>& object, unsigned count);
  bool remove(const std::shared_ptr<user_object>& object, unsigned count);

 private:
  std::vector<std::pair<std::shared_ptr<user_object>, unsigned>> held_;
};

struct event;
struct graph;

// The value that decides whether a conditional node runs its body. Its address is the handle that kernels get.
struct condition {
  std::atomic<std::uint32_t> value{0};
  std::uint32_t launch_value = 0;
  bool is_set_by_launch = false;
  bool has_node = false;  // under graph_mutex()
};

struct graph_node {
  graph_node_t handle = nullptr;
  graph_t graph = nullptr;
  int type = 0;  // graph_node_type
  context_ref ctx;
  stream::action work;
  std::shared_ptr<event> external;  // of a node that records or awaits one; `work` is then empty
  std::vector<graph_node_t> after;
  std::shared_ptr<const struct graph>
      inside;                          // of a node that holds a graph: a child as it was when it was added, or a body
  std::shared_ptr<condition> repeats;  // of a WHILE node
};
using graph_node_ref = std::shared_ptr<const graph_node>;

struct graph {
  graph_t handle = nullptr;
  std::vector<graph_node_ref> nodes;  // in order of creation, so dependencies come first
  kept_objects objects;
  std::vector<std::shared_ptr<condition>> conditions;
  graph_t owner = nullptr;  // of a body: the graph that its node is in, which it ends with
};

// A new empty graph in the table of graphs.
std::shared_ptr<graph> make_graph();
std::shared_ptr<graph> find_graph(graph_t handle);
// Ends the handles of the graph and its nodes. Executables made from it are not touched.
bool end_graph(graph_t handle);
// Under graph_mutex(): appends a node and gives it its handle.
graph_node_ref add_node_locked(graph& target, graph_node made);
graph_node_ref find_node(graph_node_t handle);

// memops.cpp: what a list of memory operations does in the context, checked and with its values frozen.
result_t make_batch(const context_ref& ctx, unsigned count, const mem_op_params* ops, unsigned flags, stream::action& out);

}  // namespace pl::sim
