// SPDX-License-Identifier: Apache-2.0
// Nodes that hold graphs: children, and WHILE nodes whose body runs until a kernel ends the loop.
#include "cuda/graph_conditions.hpp"
#include "cuda/kernel_image.hpp"
#include "test/sim/sim_test.hpp"
#include "test_kernels_image.hpp"

namespace pl::cu {
extern "C" {
#define PL_DECLARE(name, params) result_t name params;
PL_CUDA_LOOP_FUNCTIONS(PL_DECLARE)
#undef PL_DECLARE
}
namespace {

class GraphLoops : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    CU_OK(cuStreamCreate(&stream_, stream_flag::non_blocking));
    counter_ = allocate(4096);
    CU_OK(cuMemsetD8_v2(counter_, 0, 4096));
    auto loaded = load_kernels(**driver(), kernels::test_kernels());
    ASSERT_TRUE(loaded);
    CU_OK(cuModuleGetFunction(&count_passes_, *loaded, "count_passes"));
    CU_OK(cuCtxGetCurrent(&context_));
    CU_OK(cuGraphCreate(&graph_, 0));
  }
  graph_condition_t make_condition(unsigned value = 1, unsigned flags = graph_condition_flag::assign_default) {
    graph_condition_t made = 0;
    EXPECT_EQ(cuGraphConditionalHandleCreate(&made, graph_, context_, value, flags), error_code::success);
    return made;
  }
  result_t add_loop(graph_condition_t condition, graph_t* body, int kind = graph_condition::repeat_while) {
    conditional_node_params wanted{};
    wanted.type = graph_node_type::conditional;
    wanted.handle = condition;
    wanted.condition = kind;
    wanted.count = 1;
    wanted.context = context_;
    graph_node_t node = nullptr;
    const auto rc = cuGraphAddNode_v2(&node, graph_, nullptr, nullptr, 0, &wanted);
    if (rc == error_code::success) *body = wanted.bodies[0];
    return rc;
  }
  // A graph of what `queue` puts into the stream.
  template <class F>
  graph_t capture(F queue) {
    graph_t made = nullptr;
    EXPECT_EQ(cuStreamBeginCapture_v2(stream_, capture_mode::relaxed), error_code::success);
    queue();
    EXPECT_EQ(cuStreamEndCapture(stream_, &made), error_code::success);
    return made;
  }
  graph_t capture_pass(graph_condition_t condition, std::uint64_t step, std::uint64_t last) {
    return capture([&] {
      CU_OK(cuMemsetD8Async(counter_ + 8, 0x5a, 8, stream_));
      void* params[] = {&condition, &counter_, &step, &last};
      CU_OK(cuLaunchKernel(count_passes_, 1, 1, 1, 1, 1, 1, 0, stream_, params, nullptr));
    });
  }
  result_t add_child(graph_t parent, graph_t child) {
    graph_node_t node = nullptr;
    return cuGraphAddChildGraphNode(&node, parent, nullptr, 0, child);
  }
  std::uint64_t count(unsigned word = 0) {
    std::uint64_t value = 0;
    EXPECT_EQ(cuMemcpyDtoH_v2(&value, counter_ + 8 * word, 8), error_code::success);
    return value;
  }
  void launch(graph_exec_t exec) {
    CU_OK(cuGraphLaunch(exec, stream_));
    CU_OK(cuStreamSynchronize(stream_));
  }

  stream_t stream_ = nullptr;
  context_t context_ = nullptr;
  function_t count_passes_ = nullptr;
  device_ptr counter_ = 0;
  graph_t graph_ = nullptr;
};

TEST_F(GraphLoops, OneLaunchRepeatsTheBodyUntilItsKernelEndsIt) {
  const auto condition = make_condition();
  graph_t body = nullptr;
  CU_OK(add_loop(condition, &body));
  const auto pass = capture_pass(condition, 1, 1000);
  CU_OK(add_child(body, pass));
  CU_OK(cuGraphDestroy(pass));  // the child is a copy
  graph_exec_t exec = nullptr;
  CU_OK(cuGraphInstantiateWithFlags(&exec, graph_, 0));
  launch(exec);
  EXPECT_EQ(count(), 1000u);
  EXPECT_EQ(count(1), 0x5a5a5a5a5a5a5a5au);
  launch(exec);  // the launch sets the condition: one more pass
  EXPECT_EQ(count(), 1001u);
  CU_OK(cuGraphExecDestroy(exec));
  CU_OK(cuGraphDestroy(graph_));
  std::size_t nodes = 0;
  EXPECT_EQ(cuGraphGetNodes(body, nullptr, &nodes), error_code::invalid_value);  // it ended with its graph
}

TEST_F(GraphLoops, AConditionThatIsZeroAtTheLaunchRunsNothing) {
  const auto condition = make_condition(0);
  graph_t body = nullptr;
  CU_OK(add_loop(condition, &body));
  CU_OK(add_child(body, capture_pass(condition, 1, 10)));
  graph_exec_t exec = nullptr;
  CU_OK(cuGraphInstantiateWithFlags(&exec, graph_, 0));
  launch(exec);
  EXPECT_EQ(count(), 0u);
}

TEST_F(GraphLoops, AChildRunsOnceALaunch) {
  const auto condition = make_condition(0);
  graph_t body = nullptr;
  CU_OK(add_loop(condition, &body));
  CU_OK(add_child(body, capture_pass(condition, 1, 1)));
  const auto pass = capture_pass(condition, 5, 0);
  CU_OK(add_child(graph_, pass));
  graph_exec_t exec = nullptr;
  CU_OK(cuGraphInstantiateWithFlags(&exec, graph_, 0));
  launch(exec);
  EXPECT_EQ(count(), 5u);
  launch(exec);
  EXPECT_EQ(count(), 10u);
}

TEST_F(GraphLoops, ABodyTakesNoMemoryOperations) {
  const auto condition = make_condition();
  graph_t body = nullptr;
  CU_OK(add_loop(condition, &body));
  CU_OK(add_child(body, capture([&] { CU_OK(cuStreamWriteValue64_v2(stream_, counter_, 1, 0)); })));
  graph_exec_t exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), error_code::not_supported);
}

TEST_F(GraphLoops, MisuseIsRefused) {
  graph_t body = nullptr;
  EXPECT_EQ(add_loop(12345, &body), error_code::invalid_value);
  graph_condition_t made = 0;
  EXPECT_EQ(cuGraphConditionalHandleCreate(&made, graph_, context_, 1, 2), error_code::invalid_value);
  const auto condition = make_condition();
  graph_exec_t exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), error_code::invalid_value);  // a condition without a node
  EXPECT_EQ(add_loop(condition, &body, graph_condition::once_if), error_code::not_supported);
  CU_OK(add_loop(condition, &body));
  EXPECT_EQ(add_loop(condition, &body), error_code::invalid_value);  // a condition has one node
  EXPECT_EQ(cuGraphDestroy(body), error_code::invalid_value);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, body, 0), error_code::invalid_value);
  graph_t outer = nullptr;
  CU_OK(cuGraphCreate(&outer, 0));
  EXPECT_EQ(add_child(outer, graph_), error_code::not_supported);  // no graph with a loop is a child
}

}  // namespace
}  // namespace pl::cu
