// SPDX-License-Identifier: Apache-2.0
// Loops in graphs: the part of the driver's interface that only they use, and a table of its calls. Apart from
// driver_abi.hpp because one benchmark and the simulated GPU need it.
#pragma once

#include "cuda/driver_abi.hpp"

namespace pl::cu {

namespace graph_node_type {
enum : int { child_graph = 4, conditional = 13 };
}
namespace graph_condition {
enum : int { once_if = 0, repeat_while = 1 };
}
namespace graph_condition_flag {
enum : unsigned { assign_default = 1 };
}

using graph_condition_t = std::uint64_t;  // CUgraphConditionalHandle

// CUgraphNodeParams of a conditional node: other types of node have calls of their own.
struct conditional_node_params {
  int type;  // graph_node_type::conditional
  int reserved0[3];
  graph_condition_t handle;
  int condition;    // graph_condition
  unsigned count;   // of bodies: 1 for repeat_while
  graph_t* bodies;  // written by the driver: valid as long as the node is
  context_t context;
  long long reserved1[25];
  long long reserved2;
};
static_assert(sizeof(conditional_node_params) == 256);

#define PL_CUDA_LOOP_FUNCTIONS(X)                                                                                        \
  X(cuGraphAddChildGraphNode,                                                                                            \
    (graph_node_t * node, graph_t graph, const graph_node_t* after, std::size_t count, graph_t child))                   \
  X(cuGraphAddNode_v2,                                                                                                   \
    (graph_node_t * node, graph_t graph, const graph_node_t* after, const void* edges, std::size_t count, void* params)) \
  X(cuGraphConditionalHandleCreate,                                                                                      \
    (graph_condition_t * handle, graph_t graph, context_t context, unsigned value, unsigned flags))

// A null entry: this driver lacks the call.
struct loop_calls {
#define PL_LOOP_CALL(name, params) result_t(*name) params = nullptr;
  PL_CUDA_LOOP_FUNCTIONS(PL_LOOP_CALL)
#undef PL_LOOP_CALL
};

}  // namespace pl::cu
