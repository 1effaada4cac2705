// SPDX-License-Identifier: Apache-2.0
// Proofs of mappings on a driver that is known by reading only: they leave the user's memory, streams and captures alone,
// and end by themselves. Method: a copy of the simulated driver's table whose calls are watched, or held up.
#include "map/mapping_proof.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "map/bounded_call.hpp"
#include "map/registry.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

using namespace std::chrono_literals;

// The record of the watched calls.
struct watch {
  address_range users;               // the user's memory
  const unsigned char* view;         // of it, by a mapping that the simulated driver made
  std::vector<unsigned char> bytes;  // and what must be in it whenever CUDA is asked to copy
  std::atomic<int> default_stream_calls{0};
  std::atomic<int> touched{0};
  std::atomic<int> strict_mode_calls{0};
  std::atomic<bool> holds_synchronize{false};
};
watch* g_watch = nullptr;

void inspect(std::uint64_t pointer, std::size_t bytes) {
  const address_range& users = g_watch->users;
  if (pointer < users.end() && pointer + bytes > users.begin) ++g_watch->touched;
  if (std::memcmp(g_watch->view, g_watch->bytes.data(), g_watch->bytes.size()) != 0) ++g_watch->touched;
}

// The mode of the calling thread, looked at without changing it.
void note_capture_mode() {
  int mode = cu::capture_mode::relaxed;
  simulated_cuda().cuThreadExchangeStreamCaptureMode(&mode);
  if (mode != cu::capture_mode::relaxed) ++g_watch->strict_mode_calls;
  simulated_cuda().cuThreadExchangeStreamCaptureMode(&mode);
}

cu::result_t watched_dtoh(void* out, std::uint64_t source, std::size_t bytes) {
  ++g_watch->default_stream_calls;
  inspect(source, bytes);
  return simulated_cuda().cuMemcpyDtoH_v2(out, source, bytes);
}
cu::result_t watched_dtoh_async(void* out, std::uint64_t source, std::size_t bytes, cu::stream_t stream) {
  if (stream == nullptr) ++g_watch->default_stream_calls;
  note_capture_mode();
  inspect(source, bytes);
  return simulated_cuda().cuMemcpyDtoHAsync_v2(out, source, bytes, stream);
}
cu::result_t watched_export(void* handle, std::uint64_t pointer, std::size_t bytes, int type, unsigned long long flags) {
  note_capture_mode();
  return simulated_cuda().cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
}
cu::result_t held_synchronize(cu::stream_t stream) {
  while (g_watch->holds_synchronize.load()) std::this_thread::sleep_for(1ms);
  return simulated_cuda().cuStreamSynchronize(stream);
}

class mapping_proof : public testing::Test {
 protected:
  void SetUp() override {
    table_ = simulated_cuda();
    table_.cuMemcpyDtoH_v2 = watched_dtoh;
    table_.cuMemcpyDtoHAsync_v2 = watched_dtoh_async;
    table_.cuMemGetHandleForAddressRange = watched_export;
    table_.cuStreamSynchronize = held_synchronize;
    kernel_.settings().version = "570.86.10";
    context_ = std::make_unique<current_device>();
    memory_ = std::make_unique<device_buffer>(4 << 20);
    watched_.bytes = random_bytes(1 << 20, 3);
    watched_.users = {memory_->pointer(), memory_->bytes()};
    set_device_bytes(memory_->pointer(), watched_.bytes);
    int fd = -1;
    ASSERT_EQ(simulated_cuda().cuMemGetHandleForAddressRange(&fd, memory_->pointer(), memory_->bytes(),
                                                             cu::range_handle_type::dma_buf_fd,
                                                             cu::range_flag::sim_offset_in_position),
              0);
    void* const view = mmap(nullptr, memory_->bytes(), PROT_READ, MAP_SHARED, fd, lseek(fd, 0, SEEK_CUR));
    ASSERT_NE(view, MAP_FAILED);
    close(fd);
    watched_.view = static_cast<const unsigned char*>(view);
    g_watch = &watched_;
    auto opened = open_session({&kernel_, &table_}, "rm");
    ASSERT_TRUE(opened) << opened.error().message;
    session_ = *opened;
  }
  void TearDown() override {
    EXPECT_TRUE(close_session(session_));
    EXPECT_EQ(kernel_.live_objects() + kernel_.live_mappings() + kernel_.live_clients(), 0);
    EXPECT_EQ(kernel_.protocol_errors(), 0);
    EXPECT_EQ(watched_.touched.load(), 0) << "the user's memory was copied or changed";
    EXPECT_EQ(watched_.default_stream_calls.load(), 0) << "work on the default stream";
    EXPECT_EQ(device_bytes(memory_->pointer(), watched_.bytes.size()), watched_.bytes);
    munmap(const_cast<unsigned char*>(watched_.view), memory_->bytes());
  }
  result<region*> map() {
    pin_request request;
    request.range = {memory_->pointer(), 65536};
    return pin_and_map_region(session_, request);
  }

  watch watched_;
  fake_rm kernel_;
  cu::driver_table table_;
  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> memory_;
  session* session_ = nullptr;
};

TEST_F(mapping_proof, LeavesTheUsersMemoryAndTheDefaultStreamAlone) {
  auto mapped = map();
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(std::memcmp((*mapped)->data.load(), watched_.bytes.data(), 65536), 0);
}

TEST_F(mapping_proof, StillFindsAMappingOfOtherMemory) {
  kernel_.settings().shift_mapping = true;
  auto mapped = map();
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.code(), EIO);
  EXPECT_NE(mapped.error().message.find("does not show the memory it should"), std::string::npos);
}

TEST_F(mapping_proof, EndsNoCaptureOfThisThread) {
  const auto& cuda = simulated_cuda();
  for (const int mode : {cu::capture_mode::global, cu::capture_mode::thread_local_only}) {
    cu::stream_t stream = nullptr;
    cu::graph_t graph = nullptr;
    ASSERT_EQ(cuda.cuStreamCreate(&stream, cu::stream_flag::standard), 0);
    ASSERT_EQ(cuda.cuStreamBeginCapture_v2(stream, mode), 0);
    auto mapped = map();
    EXPECT_TRUE(mapped) << mapped.error().message;
    if (mapped) { EXPECT_TRUE(unpin_region(session_, *mapped, unmapping::by_request)); }
    EXPECT_EQ(cuda.cuStreamEndCapture(stream, &graph), 0) << "the capture was ended by what we called";
    if (graph != nullptr) cuda.cuGraphDestroy(graph);
    EXPECT_EQ(cuda.cuStreamDestroy_v2(stream), 0);
  }
  EXPECT_EQ(watched_.strict_mode_calls.load(), 0) << "CUDA was called in a mode in which that can end a capture";
  int mode = cu::capture_mode::global;
  EXPECT_EQ(cuda.cuThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQ(mode, cu::capture_mode::global) << "the thread's mode was not put back";
}

// A blocking stream waits for a word that the program will write through the mapping: whatever waits for that stream, as the
// default stream does, never ends.
TEST_F(mapping_proof, WaitsForNoWorkOfTheUsers) {
  const auto& cuda = simulated_cuda();
  void* word = nullptr;
  ASSERT_EQ(cuda.cuMemHostAlloc(&word, 4096, cu::host_alloc_flag::portable), 0);
  std::atomic_ref<std::uint32_t> flag(*static_cast<std::uint32_t*>(word));  // the stream polls it
  flag = 0;
  cu::stream_t stream = nullptr;
  ASSERT_EQ(cuda.cuStreamCreate(&stream, cu::stream_flag::standard), 0);
  ASSERT_EQ(cuda.cuStreamWaitValue32_v2(stream, reinterpret_cast<std::uint64_t>(word), 1, cu::wait_value::eq), 0);
  std::atomic<bool> ended{false};
  bool is_mapped = false;
  std::string reason;
  std::thread mapper([&] {
    const current_device context;
    auto mapped = map();
    is_mapped = mapped.ok();
    if (!mapped) reason = mapped.error().message;
    ended = true;
  });
  for (int i = 0; i < 1000 && !ended.load(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(ended.load()) << "the map waits for the user's stream";
  flag = 1;
  mapper.join();
  EXPECT_TRUE(is_mapped) << reason;
  EXPECT_EQ(cuda.cuStreamSynchronize(stream), 0);
  EXPECT_EQ(cuda.cuStreamDestroy_v2(stream), 0);
  EXPECT_EQ(cuda.cuMemFreeHost(word), 0);
}

TEST_F(mapping_proof, GivesUpOnAGpuThatDoesNotAnswerAndFindsTheAnswerLater) {
  watched_.holds_synchronize = true;
  const auto begin = std::chrono::steady_clock::now();
  auto mapped = map();
  const auto taken = std::chrono::steady_clock::now() - begin;
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.code(), ETIMEDOUT) << mapped.error().message;
  EXPECT_NE(mapped.error().message.find("could not be proved"), std::string::npos) << mapped.error().message;
  EXPECT_GE(taken, std::chrono::milliseconds(kBoundedCallLimitMs));
  EXPECT_EQ(kernel_.live_mappings(), 0) << "the refused mapping stays";
  watched_.holds_synchronize = false;
  auto again = map();  // waits for the same proof
  EXPECT_TRUE(again) << again.error().message;
}

TEST_F(mapping_proof, ThreadsShareOneProof) {
  std::atomic<int> failed{0};
  std::vector<std::thread> mappers;
  for (int i = 0; i < 4; ++i)
    mappers.emplace_back([&] {
      const current_device context;
      auto mapped = map();
      failed += !mapped;
    });
  for (auto& one : mappers) one.join();
  EXPECT_EQ(failed.load(), 0);
}

TEST_F(mapping_proof, ComparesWithoutWriting) {
  auto mapped = map();
  ASSERT_TRUE(mapped);
  auto plan = plan_pin(simulated_cuda(), {memory_->pointer() + 5, 1000}, kHostPageBytes, range_rule::exact);
  ASSERT_TRUE(plan);
  const cpu_view right{(*mapped)->data.load(), 4096, arch::mapping_type::wc};
  const cpu_view wrong{(*mapped)->data.load() + 4096, 4096, arch::mapping_type::wc};
  const proof_context context = context_for_proof(simulated_cuda(), *plan);
  bool has_evidence = false;
  EXPECT_TRUE(compare_mapping(context, *plan, right, &has_evidence));
  EXPECT_TRUE(has_evidence);
  EXPECT_EQ(compare_mapping(context, *plan, wrong, &has_evidence).code(), EIO);
  watched_.bytes.assign(watched_.bytes.size(), 0);
  set_device_bytes(memory_->pointer(), watched_.bytes);
  EXPECT_TRUE(compare_mapping(context, *plan, wrong, &has_evidence)) << "all bytes are alike";
  EXPECT_FALSE(has_evidence);
}

}  // namespace
}  // namespace pl::test
