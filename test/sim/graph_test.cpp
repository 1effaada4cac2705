// SPDX-License-Identifier: Apache-2.0
// Capture and replay. Gates are words in pinned memory, as in stream_test.cpp.
#include <atomic>
#include <thread>

#include "cuda/kernel_image.hpp"
#include "test/sim/sim_test.hpp"
#include "test_kernels_image.hpp"

namespace pl::cu {
namespace {

class Graphs : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    void* host = nullptr;
    CU_OK(cuMemHostAlloc(&host, 4096, 0));
    words_ = static_cast<std::uint64_t*>(host);
    CU_OK(cuStreamCreate(&stream_, stream_flag::non_blocking));
    CU_OK(cuStreamCreate(&other_, stream_flag::non_blocking));
    CU_OK(cuEventCreate(&event_, event_flag::disable_timing));
    CU_OK(cuEventCreate(&second_event_, event_flag::disable_timing));
    device_ = allocate(4096);
    CU_OK(cuMemsetD8_v2(device_, 0, 4096));
  }
  device_ptr word(unsigned i) { return reinterpret_cast<device_ptr>(words_ + i); }
  std::uint64_t seen(unsigned i) { return __atomic_load_n(words_ + i, __ATOMIC_ACQUIRE); }
  void store(unsigned i, std::uint64_t value) { __atomic_store_n(words_ + i, value, __ATOMIC_RELEASE); }
  void begin(int mode = capture_mode::relaxed) { CU_OK(cuStreamBeginCapture_v2(stream_, mode)); }
  graph_t end() {
    graph_t made = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream_, &made), error_code::success);
    return made;
  }
  result_t end_status() {
    graph_t made = nullptr;
    const result_t rc = cuStreamEndCapture(stream_, &made);
    EXPECT_EQ(made == nullptr, rc != error_code::success);
    return rc;
  }
  graph_exec_t instantiate(graph_t made) {
    graph_exec_t exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, made, 0), error_code::success);
    return exec;
  }
  int status_of(stream_t stream_handle) {
    int status = -1;
    EXPECT_EQ(cuStreamIsCapturing(stream_handle, &status), error_code::success);
    return status;
  }
  std::vector<int> types_of(graph_t made) {
    std::size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(made, nullptr, &count), error_code::success);
    std::vector<graph_node_t> nodes(count);
    EXPECT_EQ(cuGraphGetNodes(made, nodes.data(), &count), error_code::success);
    std::vector<int> types;
    for (const auto node : nodes) {
      types.push_back(-1);
      EXPECT_EQ(cuGraphNodeGetType(node, &types.back()), error_code::success);
    }
    return types;
  }

  std::uint64_t* words_ = nullptr;
  stream_t stream_ = nullptr;
  stream_t other_ = nullptr;
  event_t event_ = nullptr;
  event_t second_event_ = nullptr;
  device_ptr device_ = 0;
};

TEST_F(Graphs, EveryKindOfOperationIsCapturedAndRunsOnlyWhenLaunched) {
  auto loaded = load_kernels(**driver(), kernels::test_kernels());
  ASSERT_TRUE(loaded);
  function_t count_threads = nullptr;
  CU_OK(cuModuleGetFunction(&count_threads, *loaded, "count_threads"));
  std::uint64_t counter = device_ + 64;
  void* params[] = {&counter};
  std::atomic<int> calls{0};

  begin();
  CU_OK(cuMemsetD8Async(device_, 7, 8, stream_));
  CU_OK(cuMemcpyDtoHAsync_v2(words_, device_, 8, stream_));
  CU_OK(cuLaunchKernel(count_threads, 3, 1, 1, 5, 1, 1, 0, stream_, params, nullptr));
  CU_OK(cuLaunchHostFunc(
      stream_, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls));
  mem_op_params ops[2] = {};
  ops[0].value = {mem_op::write64, word(1), {.value64 = 11}, 0, 0};
  ops[1].value = {mem_op::wait64, word(1), {.value64 = 11}, wait_value::eq, 0};
  CU_OK(cuStreamBatchMemOp_v2(stream_, 2, ops, 0));
  ops[0].value.value64 = 99;  // frozen: the caller's array is its own again
  CU_OK(cuStreamWriteValue32_v2(stream_, word(2), 5, 0));
  EXPECT_EQ(status_of(stream_), capture_status::active);
  const graph_t made = end();
  EXPECT_EQ(status_of(stream_), capture_status::none);
  namespace type = graph_node_type;
  EXPECT_EQ(types_of(made), (std::vector<int>{type::memset, type::memcpy, type::kernel, type::host, type::batch_mem_op,
                                              type::batch_mem_op}));
  CU_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(seen(1), 0u);

  const graph_exec_t exec = instantiate(made);
  CU_OK(cuGraphDestroy(made));
  CU_FAILS(invalid_value, cuGraphDestroy(made));
  for (int launch = 1; launch <= 3; ++launch) {
    store(0, 0);
    store(1, 0);
    CU_OK(cuGraphLaunch(exec, launch == 2 ? other_ : stream_));
    CU_OK(cuStreamSynchronize(launch == 2 ? other_ : stream_));
    EXPECT_EQ(seen(0), 0x0707070707070707u);
    EXPECT_EQ(seen(1), 11u);
    EXPECT_EQ(calls, launch);
    std::uint32_t threads = 0;
    CU_OK(cuMemcpyDtoH_v2(&threads, counter, 4));
    EXPECT_EQ(threads, 15u * static_cast<unsigned>(launch));
  }
  CU_OK(cuGraphExecDestroy(exec));
  CU_FAILS(invalid_value, cuGraphLaunch(exec, stream_));
}

TEST_F(Graphs, EventsForkAndJoinAndBranchesRunAtTheSameTime) {
  begin();
  CU_OK(cuEventRecord(event_, stream_));
  CU_OK(cuStreamWaitEvent(other_, event_, 0));
  EXPECT_EQ(status_of(other_), capture_status::active);
  CU_OK(cuStreamWaitValue64_v2(other_, word(0), 1, wait_value::geq));  // only the other branch can let it pass
  CU_OK(cuStreamWriteValue64_v2(other_, word(1), 2, 0));
  CU_OK(cuStreamWriteValue64_v2(stream_, word(0), 1, 0));
  CU_OK(cuStreamWaitValue64_v2(stream_, word(1), 2, wait_value::geq));
  CU_OK(cuEventRecord(second_event_, other_));
  CU_OK(cuStreamWaitEvent(stream_, second_event_, 0));
  CU_OK(cuStreamWriteValue64_v2(stream_, word(2), 3, 0));
  const graph_t made = end();
  EXPECT_EQ(status_of(other_), capture_status::none);
  const graph_exec_t exec = instantiate(made);
  for (int i = 0; i < 3; ++i) {
    for (unsigned w = 0; w < 3; ++w) store(w, 0);
    CU_OK(cuGraphLaunch(exec, stream_));
    CU_OK(cuStreamSynchronize(stream_));
    EXPECT_EQ(seen(2), 3u);
  }
  CU_OK(cuGraphExecDestroy(exec));
  CU_OK(cuGraphDestroy(made));
}

TEST_F(Graphs, LaunchesOfOneExecutableFollowEachOther) {
  begin();
  CU_OK(cuStreamWaitValue64_v2(stream_, word(0), 1, wait_value::geq));
  CU_OK(cuStreamWriteValue64_v2(stream_, word(0), 0, 0));
  CU_OK(cuStreamWriteValue64_v2(stream_, word(1), 1, 0));
  const graph_exec_t exec = instantiate(end());
  CU_OK(cuGraphLaunch(exec, stream_));
  CU_OK(cuGraphLaunch(exec, other_));  // behind the first one although it is another stream
  store(0, 1);
  CU_OK(cuStreamSynchronize(stream_));
  CU_FAILS(not_ready, cuStreamQuery(other_));
  store(0, 1);
  CU_OK(cuStreamSynchronize(other_));
  CU_OK(cuGraphExecDestroy(exec));
}

TEST_F(Graphs, ExternalEventsAreRecordedAndAwaitedByEveryLaunch) {
  CU_FAILS(invalid_value, cuEventRecordWithFlags(event_, stream_, event_record_flag::external));
  CU_FAILS(invalid_value, cuStreamWaitEvent(stream_, event_, event_wait_flag::external));
  begin();
  CU_OK(cuStreamWaitEvent(stream_, second_event_, event_wait_flag::external));
  CU_OK(cuEventRecordWithFlags(event_, stream_, event_record_flag::external));
  const graph_t made = end();
  EXPECT_EQ(types_of(made), (std::vector<int>{graph_node_type::event_wait, graph_node_type::event_record}));
  const graph_exec_t exec = instantiate(made);
  for (std::uint64_t i = 1; i <= 2; ++i) {
    CU_OK(cuStreamWaitValue64_v2(other_, word(0), i, wait_value::geq));
    CU_OK(cuEventRecord(second_event_, other_));
    CU_OK(cuGraphLaunch(exec, stream_));
    CU_FAILS(not_ready, cuEventQuery(event_));
    store(0, i);
    CU_OK(cuEventSynchronize(event_));
  }
  CU_OK(cuGraphExecDestroy(exec));
}

TEST_F(Graphs, CaptureInfoShowsTheGraphAndWhatTheNextNodeFollows) {
  int status = -1;
  CU_OK(cuStreamGetCaptureInfo_v3(stream_, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, capture_status::none);
  begin();
  std::uint64_t id = 0;
  graph_t shown = nullptr;
  const graph_node_t* after = nullptr;
  std::size_t count = 9;
  CU_OK(cuStreamGetCaptureInfo_v3(stream_, &status, &id, &shown, &after, nullptr, &count));
  EXPECT_EQ(status, capture_status::active);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(count, 0u);
  CU_OK(cuStreamWriteValue64_v2(stream_, word(0), 1, 0));
  CU_OK(cuStreamGetCaptureInfo_v3(stream_, &status, &id, &shown, &after, nullptr, &count));
  ASSERT_EQ(count, 1u);
  // A node beside the stream's own, which the stream then follows as well.
  graph_node_t added = nullptr;
  mem_op_params op{};
  op.value = {mem_op::write64, word(1), {.value64 = 4}, 0, 0};
  const batch_mem_op_node_params params{context_, 1, &op, 0};
  CU_OK(cuGraphAddBatchMemOpNode(&added, shown, nullptr, 0, &params));
  CU_OK(cuStreamUpdateCaptureDependencies_v2(stream_, &added, nullptr, 1, capture_dependencies::add));
  CU_OK(cuStreamGetCaptureInfo_v3(stream_, &status, &id, &shown, &after, nullptr, &count));
  EXPECT_EQ(count, 2u);
  CU_FAILS(invalid_value, cuGraphDestroy(shown));
  const graph_t made = end();
  EXPECT_EQ(made, shown);
  CU_FAILS(illegal_state, cuStreamUpdateCaptureDependencies_v2(stream_, &added, nullptr, 1, 0));

  const graph_exec_t exec = instantiate(made);
  CU_OK(cuGraphLaunch(exec, stream_));
  op.value.value64 = 5;
  CU_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(seen(1), 4u);
  CU_OK(cuGraphExecBatchMemOpNodeSetParams(exec, added, &params));
  CU_OK(cuGraphLaunch(exec, stream_));
  CU_OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(seen(1), 5u) << "the executable's value was changed";
  CU_OK(cuGraphExecDestroy(exec));
}

TEST_F(Graphs, UnsupportedCallsInvalidateTheCapture) {
  const std::pair<const char*, result_t> cases[] = {
      {"synchronize", error_code::stream_capture_unsupported},
      {"query", error_code::stream_capture_unsupported},
      {"context", error_code::stream_capture_unsupported},
      {"pageable", error_code::stream_capture_unsupported},
      {"event query", error_code::captured_event},
      {"outside", error_code::stream_capture_isolation},
  };
  CU_OK(cuEventRecord(second_event_, other_));
  for (const auto& [call, expected] : cases) {
    const std::string_view name = call;
    begin();
    CU_OK(cuEventRecord(event_, stream_));
    std::uint64_t pageable = 0;
    const result_t rc = name == "synchronize"   ? cuStreamSynchronize(stream_)
                        : name == "query"       ? cuStreamQuery(stream_)
                        : name == "context"     ? cuCtxSynchronize()
                        : name == "pageable"    ? cuMemcpyHtoDAsync_v2(device_, &pageable, 8, stream_)
                        : name == "event query" ? cuEventQuery(event_)
                                                : cuStreamWaitEvent(stream_, second_event_, 0);
    EXPECT_EQ(rc, expected) << call;
    EXPECT_EQ(status_of(stream_), capture_status::invalidated) << call;
    CU_FAILS(stream_capture_invalidated, cuStreamWriteValue64_v2(stream_, word(0), 1, 0)) << call;
    EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated)) << call;
    CU_OK(cuStreamSynchronize(stream_)) << call;
  }
  graph_t made = nullptr;
  CU_FAILS(illegal_state, cuStreamEndCapture(stream_, &made));
  CU_FAILS(stream_capture_unsupported, cuStreamBeginCapture_v2(nullptr, capture_mode::relaxed));
}

TEST_F(Graphs, ForksMustBeJoinedAndCapturesStayApart) {
  begin();
  CU_OK(cuEventRecord(event_, stream_));
  CU_OK(cuStreamWaitEvent(other_, event_, 0));
  CU_OK(cuStreamWriteValue64_v2(other_, word(0), 1, 0));
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_unjoined));
  graph_t made = nullptr;

  begin();
  CU_OK(cuEventRecord(event_, stream_));
  CU_OK(cuStreamWaitEvent(other_, event_, 0));
  CU_FAILS(illegal_state, cuStreamBeginCapture_v2(other_, capture_mode::relaxed));
  CU_FAILS(stream_capture_unmatched, cuStreamEndCapture(other_, &made));
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated));

  begin();
  CU_OK(cuStreamBeginCapture_v2(other_, capture_mode::relaxed));
  CU_OK(cuEventRecord(event_, other_));
  CU_FAILS(stream_capture_merge, cuStreamWaitEvent(stream_, event_, 0));
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated));
  CU_FAILS(stream_capture_invalidated, cuStreamEndCapture(other_, &made));
}

TEST_F(Graphs, TheLegacyStreamIsOutOfUseWhileABlockingStreamIsCaptured) {
  stream_t blocking = nullptr;
  CU_OK(cuStreamCreate(&blocking, stream_flag::standard));
  CU_OK(cuStreamBeginCapture_v2(blocking, capture_mode::relaxed));
  int status = 0;
  CU_FAILS(stream_capture_implicit, cuStreamIsCapturing(nullptr, &status));
  EXPECT_EQ(status_of(blocking), capture_status::active) << "asking does no harm";
  CU_FAILS(stream_capture_implicit, cuMemsetD8Async(device_, 1, 8, nullptr));
  graph_t made = nullptr;
  CU_FAILS(stream_capture_invalidated, cuStreamEndCapture(blocking, &made));
  CU_OK(cuMemsetD8Async(device_, 1, 8, nullptr));
  begin();
  CU_OK(cuMemsetD8Async(device_, 1, 8, nullptr)) << "a non-blocking stream's capture leaves it alone";
  CU_OK(cuGraphDestroy(end()));
}

TEST_F(Graphs, ModesSayWhoMayCallWhatMeanwhile) {
  const auto allocation = [] {
    device_ptr pointer = 0;
    const result_t rc = cuMemAlloc_v2(&pointer, 64);
    return rc == error_code::success ? cuMemFree_v2(pointer) : rc;
  };
  const auto elsewhere = [&](int mode) {
    result_t rc = -1;
    std::thread([&] {
      EXPECT_EQ(cuCtxSetCurrent(context_), error_code::success);
      EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), error_code::success);
      EXPECT_EQ(mode, capture_mode::global);
      rc = allocation();
    }).join();
    return rc;
  };
  constexpr result_t kRefused = error_code::stream_capture_unsupported;
  begin(capture_mode::relaxed);
  EXPECT_EQ(allocation(), 0);
  EXPECT_EQ(elsewhere(capture_mode::global), 0);
  CU_OK(cuGraphDestroy(end()));
  begin(capture_mode::thread_local_only);
  EXPECT_EQ(elsewhere(capture_mode::global), 0);
  EXPECT_EQ(allocation(), kRefused);
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated));
  begin(capture_mode::global);
  EXPECT_EQ(elsewhere(capture_mode::thread_local_only), 0);
  EXPECT_EQ(elsewhere(capture_mode::relaxed), 0);
  int mode = capture_mode::relaxed;
  CU_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(allocation(), 0);
  CU_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(status_of(stream_), capture_status::active);
  EXPECT_EQ(elsewhere(capture_mode::global), kRefused);
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated));
  begin(capture_mode::thread_local_only);
  std::thread([&] { EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_wrong_thread)); }).join();
  EXPECT_EQ(end_status(), static_cast<result_t>(error_code::stream_capture_invalidated));
}

TEST_F(Graphs, UserObjectsLiveAsLongAsTheGraphsThatUseThem) {
  std::atomic<int> destroyed{0};
  const auto destroy = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  user_object_t object = nullptr;
  CU_FAILS(invalid_value, cuUserObjectCreate(&object, &destroyed, destroy, 1, 0));
  CU_OK(cuUserObjectCreate(&object, &destroyed, destroy, 1, user_object_flag::no_destructor_sync));
  begin();
  CU_OK(cuStreamWaitValue64_v2(stream_, word(0), 1, wait_value::geq));
  const graph_t made = end();
  CU_OK(cuGraphRetainUserObject(made, object, 1, user_object_retain_flag::move));
  CU_OK(cuGraphRetainUserObject(made, object, 2, 0));
  CU_OK(cuGraphReleaseUserObject(made, object, 2));
  const graph_exec_t exec = instantiate(made);
  CU_OK(cuGraphDestroy(made));
  CU_OK(cuGraphLaunch(exec, stream_));
  CU_OK(cuGraphExecDestroy(exec));
  CU_FAILS(not_ready, cuStreamQuery(stream_));
  EXPECT_EQ(destroyed, 0) << "a launch under way keeps it";
  store(0, 1);
  CU_OK(cuStreamSynchronize(stream_));
  while (destroyed == 0) std::this_thread::yield();
  CU_FAILS(invalid_value, cuUserObjectRelease(object, 1));
}

TEST_F(Graphs, DestroyingTheContextEndsALaunchThatWaits) {
  begin();
  CU_OK(cuEventRecord(event_, stream_));
  CU_OK(cuStreamWaitEvent(other_, event_, 0));
  CU_OK(cuStreamWaitValue64_v2(other_, word(0), 1, wait_value::geq));
  CU_OK(cuEventRecord(second_event_, other_));
  CU_OK(cuStreamWaitEvent(stream_, second_event_, 0));
  const graph_exec_t exec = instantiate(end());
  CU_OK(cuGraphLaunch(exec, stream_));
  begin();  // and a capture that nobody ends
  CU_OK(cuCtxDestroy_v2(context_));
  context_ = nullptr;
  CU_OK(cuGraphExecDestroy(exec));
}

extern "C" result_t cuGetProcAddress_v2(const char*, void**, int, std::uint64_t, int*);

TEST_F(Graphs, NamesMeanTheFormOfTheProgramsVersion) {
  const auto symbol = [](const char* name, int version) {
    void* found = nullptr;
    EXPECT_EQ(cuGetProcAddress_v2(name, &found, version, 0, nullptr), error_code::success);
    return found;
  };
  EXPECT_EQ(symbol("cuGraphInstantiateWithFlags", 13000), reinterpret_cast<void*>(&cuGraphInstantiateWithFlags));
  EXPECT_EQ(symbol("cuStreamGetCaptureInfo", 13000), reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v3));
  EXPECT_NE(symbol("cuStreamGetCaptureInfo", 11030), symbol("cuStreamGetCaptureInfo", 13000));
  EXPECT_EQ(symbol("cuStreamBeginCapture", 13000), reinterpret_cast<void*>(&cuStreamBeginCapture_v2));
}

}  // namespace
}  // namespace pl::cu
