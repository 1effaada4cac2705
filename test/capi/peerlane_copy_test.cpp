// SPDX-License-Identifier: Apache-2.0
// The copies' C interface and the C++ layer over it: handles, ownership, error values, and that data arrives.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <peerlane/copy.hpp>
#include <string>
#include <vector>

#include "test/capi/capi_fixture.hpp"
#include "test/copy/copy_fixture.hpp"

namespace pl::test {
namespace {

class peerlane_copies : public capi_test {
 protected:
  void SetUp() override {
    capi_test::SetUp();
    ASSERT_EQ(peerlane_copier_open(nullptr, &copier_), 0) << peerlane_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(peerlane_copier_close(copier_), 0) << peerlane_last_error();
    // The simulator's threads let go of a kernel's memory a moment after its stream is idle.
    for (int i = 0; i < 1000 && mapping_count("peerlane-sim") != mapped_; ++i) usleep(1000);
    capi_test::TearDown();
  }
  peerlane_copier_t copier_ = nullptr;
};

TEST_F(peerlane_copies, DataArrivesBothWaysAndOnTheDevice) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{1000}, std::size_t{30'000}}) {
    const auto data = random_bytes(bytes, bytes);
    ASSERT_EQ(peerlane_copy(copier_, peerlane_device_buffer(device_ + 3, bytes), peerlane_host_buffer(data.data(), bytes)),
              0)
        << peerlane_last_error();
    EXPECT_EQ(device_bytes(device_ + 3, bytes), data);
    std::vector<unsigned char> got(bytes);
    ASSERT_EQ(peerlane_copy(copier_, peerlane_host_buffer(got.data(), bytes),
                            peerlane_any_buffer(reinterpret_cast<void*>(device_ + 3), bytes)),
              0)
        << peerlane_last_error();
    EXPECT_EQ(got, data);
    ASSERT_EQ(
        peerlane_copy(copier_, peerlane_device_buffer(device_ + 32'000, bytes), peerlane_device_buffer(device_ + 3, bytes)),
        0)
        << peerlane_last_error();
    EXPECT_EQ(device_bytes(device_ + 32'000, bytes), data);
    ASSERT_EQ(peerlane_copy_fill(copier_, peerlane_device_buffer(device_ + 3, bytes), 0x1A5), 0);
    EXPECT_EQ(device_bytes(device_ + 3, bytes), std::vector<unsigned char>(bytes, 0xA5));
  }
}

TEST_F(peerlane_copies, RowsAndLists) {
  const auto data = random_bytes(10'000, 1);
  set_device_bytes(device_, data);
  std::vector<unsigned char> got(2000);
  const auto host = peerlane_host_buffer(got.data(), got.size());
  peerlane_transfer rows{host, peerlane_device_buffer(device_, 410), 5, 10, 20, 100};
  ASSERT_EQ(peerlane_copy_rows(copier_, &rows), 0) << peerlane_last_error();
  for (std::size_t row = 0; row < 5; ++row) EXPECT_EQ(std::memcmp(&got[row * 20], &data[row * 100], 10), 0);
  rows.source.size_bytes = 409;
  EXPECT_EQ(peerlane_copy_rows(copier_, &rows), ERANGE) << "the last row leaves the source";
  rows.source.size_bytes = 410;
  rows.rows = SIZE_MAX;
  EXPECT_EQ(peerlane_copy_rows(copier_, &rows), ERANGE) << "the product wraps";
  peerlane_transfer list[2] = {
      peerlane_plain_transfer(host, peerlane_device_buffer(device_, 10)),
      peerlane_plain_transfer(peerlane_host_buffer(&got[500], 10), peerlane_device_buffer(device_ + 1000, 10))};
  ASSERT_EQ(peerlane_copy_list(copier_, list, 2), 0);
  EXPECT_EQ(std::memcmp(&got[500], &data[1000], 10), 0);
  EXPECT_EQ(peerlane_copy_list(copier_, nullptr, 0), 0);
  list[1].source.memory = 3;
  EXPECT_EQ(peerlane_copy_list(copier_, list, 2), EINVAL);
  EXPECT_EQ(peerlane_copy_list(copier_, nullptr, 1), EINVAL);
  EXPECT_EQ(peerlane_copy_rows(copier_, nullptr), EINVAL);
}

TEST_F(peerlane_copies, ErrorsSayWhatIsWrong) {
  char byte = 0;
  const auto host = peerlane_host_buffer(&byte, 1);
  const auto wrong = peerlane_device_buffer(reinterpret_cast<std::uint64_t>(&byte), 1);
  EXPECT_EQ(peerlane_copy(copier_, wrong, host), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("destination"), std::string::npos);
  EXPECT_EQ(peerlane_copy(copier_, peerlane_host_buffer(nullptr, 1), peerlane_device_buffer(device_, 1)), EINVAL);
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_EQ(peerlane_copy(copier_, peerlane_host_buffer(&byte, huge), peerlane_device_buffer(device_, huge)), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("allocation"), std::string::npos);
  EXPECT_EQ(peerlane_copy(copier_, host, peerlane_device_buffer(device_, 2)), ERANGE);
  EXPECT_EQ(byte, 0);
  EXPECT_EQ(peerlane_copy(copier_, host, host), EINVAL) << "host memory both";
  EXPECT_NE(std::string(peerlane_last_error()).find("memcpy"), std::string::npos);
  EXPECT_EQ(peerlane_copy_fill(copier_, host, 0), EINVAL);
  EXPECT_EQ(peerlane_copy(copier_, peerlane_host_buffer(nullptr, 0), peerlane_device_buffer(0, 0)), 0) << "nothing to copy";
}

TEST_F(peerlane_copies, TheDriverSaysOnceWhatLiesThere) {
  peerlane_buffer found{};
  char byte = 0;
  ASSERT_EQ(peerlane_detect_buffer(&byte, 1, &found), 0);
  EXPECT_EQ(found.memory, static_cast<unsigned>(PEERLANE_MEMORY_HOST));
  ASSERT_EQ(peerlane_detect_buffer(reinterpret_cast<void*>(device_ + 5), 100, &found), 0);
  EXPECT_EQ(found.memory, static_cast<unsigned>(PEERLANE_MEMORY_DEVICE));
  EXPECT_EQ(found.address, device_ + 5);
  EXPECT_EQ(found.size_bytes, 100u);
  EXPECT_EQ(peerlane_detect_buffer(reinterpret_cast<void*>(device_), std::size_t{1} << 40, &found), EINVAL);
  EXPECT_EQ(peerlane_detect_buffer(&byte, 1, nullptr), EINVAL);
}

TEST_F(peerlane_copies, ADescriptorWakesWhoSleeps) {
  std::vector<unsigned char> got(3u << 20);
  const auto data = random_bytes(got.size(), 9);
  set_device_bytes(device_, data);
  const auto one =
      peerlane_plain_transfer(peerlane_host_buffer(got.data(), got.size()), peerlane_device_buffer(device_, got.size()));
  for (int round = 0; round < 20; ++round) {
    std::fill(got.begin(), got.end(), 0);
    peerlane_op_t op = PEERLANE_OP_INIT;
    ASSERT_EQ(peerlane_copy_begin(copier_, &one, 1, PEERLANE_BEGIN_DEFAULT, nullptr, &op), 0) << peerlane_last_error();
    int descriptor = -1, again = -1, done = 0;
    ASSERT_EQ(peerlane_copy_descriptor(&op, &descriptor), 0) << peerlane_last_error();
    ASSERT_EQ(peerlane_copy_descriptor(&op, &again), 0);
    EXPECT_EQ(descriptor, again);
    EXPECT_EQ(peerlane_copy_descriptor(&op, nullptr), EINVAL);
    for (;;) {
      ASSERT_EQ(peerlane_op_test(&op, &done, nullptr), 0);
      if (done != 0) break;
      pollfd waited{descriptor, POLLIN, 0};
      ASSERT_EQ(poll(&waited, 1, 20'000), 1) << "nobody woke it";
    }
    ASSERT_EQ(got, data);
  }
}

TEST_F(peerlane_copies, AGraphMakesTheCopiesAtEachLaunch) {
  const auto& cuda = simulated_cuda();
  constexpr std::size_t kBytes = 3000;
  void* pinned = nullptr;
  cu::stream_t stream = nullptr;
  cu::graph_t graph = nullptr;
  cu::graph_exec_t launchable = nullptr;
  ASSERT_EQ(cuda.cuMemHostAlloc(&pinned, kBytes, 0), 0);
  ASSERT_EQ(cuda.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  auto one = peerlane_plain_transfer(peerlane_host_buffer(pinned, kBytes), peerlane_device_buffer(device_, kBytes));
  EXPECT_EQ(peerlane_copy_capture(copier_, &one, 1, stream), EINVAL) << "no capture";
  ASSERT_EQ(cuda.cuStreamBeginCapture_v2(stream, cu::capture_mode::thread_local_only), 0);
  EXPECT_EQ(peerlane_copy_capture(copier_, nullptr, 1, stream), EINVAL);
  one.destination.size_bytes = kBytes - 1;
  EXPECT_EQ(peerlane_copy_capture(copier_, &one, 1, stream), ERANGE);
  one.destination.size_bytes = kBytes;
  peerlane_op_t op = PEERLANE_OP_INIT;
  EXPECT_EQ(peerlane_copy_begin(copier_, &one, 1, PEERLANE_BEGIN_AFTER_STREAM, stream, &op), EBUSY);
  EXPECT_NE(std::string(peerlane_last_error()).find("peerlane_copy_capture"), std::string::npos);
  EXPECT_EQ(peerlane_copy_capture(copier_, &one, 1, stream), 0) << peerlane_last_error();
  ASSERT_EQ(cuda.cuStreamEndCapture(stream, &graph), 0);
  ASSERT_EQ(cuda.cuGraphInstantiateWithFlags(&launchable, graph, 0), 0);
  for (unsigned turn = 0; turn < 3; ++turn) {
    const auto data = random_bytes(kBytes, turn);
    set_device_bytes(device_, data);
    ASSERT_EQ(cuda.cuGraphLaunch(launchable, stream), 0);
    ASSERT_EQ(cuda.cuStreamSynchronize(stream), 0);
    EXPECT_EQ(std::memcmp(pinned, data.data(), kBytes), 0) << turn;
  }
  EXPECT_EQ(cuda.cuGraphExecDestroy(launchable), 0);
  EXPECT_EQ(cuda.cuGraphDestroy(graph), 0);
  EXPECT_EQ(cuda.cuStreamDestroy_v2(stream), 0);
  EXPECT_EQ(cuda.cuMemFreeHost(pinned), 0);
}

TEST_F(peerlane_copies, OperationsHoldsAndRegistrationsKeepTheCopierOpen) {
  std::vector<unsigned char> got(20'000);
  const auto data = random_bytes(got.size(), 8);
  set_device_bytes(device_, data);
  const auto one =
      peerlane_plain_transfer(peerlane_host_buffer(got.data(), got.size()), peerlane_device_buffer(device_, got.size()));
  peerlane_op_t later = PEERLANE_OP_INIT;
  EXPECT_EQ(peerlane_copy_begin(copier_, &one, 1, 8, nullptr, &later), EINVAL);
  EXPECT_TRUE(peerlane_op_is_empty(&later));
  ASSERT_EQ(peerlane_copy_begin(copier_, &one, 1, PEERLANE_BEGIN_DEFAULT, nullptr, &later), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  EXPECT_EQ(peerlane_op_cancel(&later), EBUSY) << "copies cannot be cancelled";
  EXPECT_EQ(peerlane_copy_make_wait(&later, nullptr), 0);
  peerlane_op_t copied = later;
  peerlane_op_info info{};
  ASSERT_EQ(peerlane_op_wait(&later, PEERLANE_NO_LIMIT, &info), 0);
  EXPECT_TRUE(peerlane_op_is_empty(&later));
  EXPECT_EQ(info.error, 0);
  EXPECT_EQ(info.size_bytes, got.size());
  EXPECT_EQ(info.moved_bytes, got.size());
  EXPECT_EQ(got, data);
  EXPECT_EQ(peerlane_op_wait(&later, 0, &info), 0) << "an empty one has ended well";
  int none = 5;
  EXPECT_EQ(peerlane_copy_descriptor(&later, &none), EINVAL) << "it has ended";
  EXPECT_EQ(peerlane_copy_descriptor(nullptr, &none), EINVAL);
  EXPECT_EQ(none, 5);
  EXPECT_EQ(peerlane_copy_make_wait(&later, nullptr), 0);
  // The other copy of the value names what has ended.
  int done = 7;
  EXPECT_EQ(peerlane_op_test(&copied, &done, nullptr), EINVAL);
  EXPECT_EQ(done, 7);
  EXPECT_EQ(peerlane_op_wait(&copied, 0, nullptr), EINVAL);
  EXPECT_EQ(peerlane_op_release(&copied), EINVAL);
  EXPECT_EQ(peerlane_copy_record(&copied, nullptr), EINVAL);
  EXPECT_NE(std::string(peerlane_op_last_error(&copied)).find("not live"), std::string::npos);

  peerlane_registration_t kept = nullptr;
  ASSERT_EQ(peerlane_copier_register(copier_, peerlane_device_buffer(device_, 4096), &kept), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  EXPECT_EQ(peerlane_copy(copier_, peerlane_host_buffer(got.data(), 64), peerlane_device_buffer(device_ + 100, 64)), 0);
  EXPECT_EQ(std::memcmp(got.data(), data.data() + 100, 64), 0);
  EXPECT_EQ(peerlane_registration_release(kept), 0);
  EXPECT_EQ(peerlane_registration_release(kept), EINVAL);

  peerlane_registration_t host = nullptr;
  EXPECT_EQ(peerlane_copier_register(copier_, peerlane_host_buffer(nullptr, 1), &host), EINVAL);
  ASSERT_EQ(peerlane_copier_register(copier_, peerlane_any_buffer(got.data(), got.size()), &host), 0)
      << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  std::fill(got.begin(), got.end(), 0);
  EXPECT_EQ(peerlane_copy(copier_, one.destination, one.source), 0) << peerlane_last_error();
  EXPECT_EQ(got, data);
  EXPECT_EQ(peerlane_registration_release(host), 0);

  peerlane_hold_t hold = nullptr;
  ASSERT_EQ(peerlane_copier_keep_hot(copier_, 0, &hold), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  EXPECT_EQ(peerlane_hold_release(hold), 0);
  EXPECT_EQ(peerlane_hold_release(hold), EINVAL);
  EXPECT_EQ(peerlane_copier_prepare(copier_, 0), 0);
  EXPECT_EQ(peerlane_copier_trim(copier_), 0);
}

// Copies that wait for a stream which the test holds back.
class held_copies : public peerlane_copies {
 protected:
  peerlane_op_t begin(const copy::gate& held, std::size_t size_bytes, std::uint64_t offset = 1 << 20) {
    const auto transfer = peerlane_plain_transfer(peerlane_device_buffer(device_ + offset, size_bytes),
                                                  peerlane_device_buffer(device_, size_bytes));
    peerlane_op_t op = PEERLANE_OP_INIT;
    EXPECT_EQ(peerlane_copy_begin(copier_, &transfer, 1, PEERLANE_BEGIN_AFTER_STREAM, held.stream(), &op), 0)
        << peerlane_last_error();
    return op;
  }
  struct heard {
    std::atomic<int> calls{0}, code{-1};
    std::atomic<std::uint64_t> size_bytes{0};
  };
  static void hear(void* context, const peerlane_op_info* info) {
    auto& heard_end = *static_cast<heard*>(context);
    heard_end.code = info->error;
    heard_end.size_bytes = info->size_bytes;
    ++heard_end.calls;
  }
};

TEST_F(held_copies, AWaitEndsAfterItsTimeAndTheCopyGoesOn) {
  const auto data = random_bytes(5000, 2);
  set_device_bytes(device_, data);
  {
    copy::gate held;
    auto op = begin(held, data.size());
    int done = 1;
    EXPECT_EQ(peerlane_op_test(&op, &done, nullptr), 0);
    EXPECT_EQ(done, 0);
    EXPECT_EQ(peerlane_op_wait(&op, 1, nullptr), ETIMEDOUT);
    std::size_t index = 7;
    EXPECT_EQ(peerlane_wait_any(&op, 1, 1, &index, nullptr), ETIMEDOUT);
    EXPECT_EQ(index, 7u);
    ASSERT_FALSE(peerlane_op_is_empty(&op));
    held.open();
    EXPECT_EQ(peerlane_wait_any(&op, 1, 20'000, &index, nullptr), 0) << peerlane_last_error();
    EXPECT_EQ(index, 0u);
    EXPECT_EQ(device_bytes(device_ + (1 << 20), data.size()), data);
  }
}

TEST_F(held_copies, AFunctionIsCalledOnceByAThreadOfTheLibrary) {
  copy::gate held;
  heard heard_end, second;
  auto op = begin(held, 3000), other = begin(held, 1000, 2 << 20);
  ASSERT_EQ(peerlane_op_then(&op, hear, &heard_end), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_op_then(&op, hear, &heard_end), EEXIST);
  ASSERT_EQ(peerlane_op_then(&other, hear, &second), 0);
  EXPECT_EQ(peerlane_op_wait(&op, 1, nullptr), ETIMEDOUT);
  EXPECT_EQ(heard_end.calls, 0);
  held.open();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((heard_end.calls == 0 || second.calls == 0) && std::chrono::steady_clock::now() < limit) usleep(100);
  EXPECT_EQ(heard_end.calls, 1);
  EXPECT_EQ(heard_end.code, 0);
  EXPECT_EQ(heard_end.size_bytes, 3000u);
  EXPECT_EQ(peerlane_copy_make_wait(&op, nullptr), 0);
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY) << "they are still to be ended";
  EXPECT_EQ(peerlane_op_wait(&op, 0, nullptr), 0);
  EXPECT_EQ(peerlane_op_release(&other), 0);
  EXPECT_EQ(heard_end.calls + second.calls, 2);
}

TEST_F(held_copies, AFunctionHasReturnedBeforeTheWaitDoes) {
  for (int round = 0; round < 20; ++round) {
    copy::gate held;
    heard heard_end;
    auto op = begin(held, 3000);
    ASSERT_EQ(peerlane_op_then(&op, hear, &heard_end), 0);
    held.open();
    ASSERT_EQ(peerlane_op_wait(&op, PEERLANE_NO_LIMIT, nullptr), 0);
    ASSERT_EQ(heard_end.calls, 1);
  }
}

// Who tests may hold a lock that the function wants, such as Python's.
TEST_F(held_copies, ATestDoesNotWaitForAFunctionInAnotherThread) {
  struct meeting {
    std::atomic<bool> has_begun{false}, may_return{false};
  } place;
  copy::gate held;
  auto op = begin(held, 3000);
  ASSERT_EQ(peerlane_op_then(
                &op,
                [](void* context, const peerlane_op_info*) {
                  auto& shared = *static_cast<meeting*>(context);
                  shared.has_begun = true;
                  shared.has_begun.notify_all();
                  shared.may_return.wait(false);
                },
                &place),
            0);
  held.open();
  place.has_begun.wait(false);
  int done = 1;
  ASSERT_EQ(peerlane_op_test(&op, &done, nullptr), 0);
  EXPECT_EQ(done, 0) << "it has not returned";
  EXPECT_FALSE(peerlane_op_is_empty(&op));
  place.may_return = true;
  place.may_return.notify_all();
  EXPECT_EQ(peerlane_op_wait(&op, 20'000, nullptr), 0) << peerlane_last_error();
}

TEST_F(peerlane_copies, HandlesThatAreNone) {
  char byte = 0;
  for (auto* const bogus : {reinterpret_cast<peerlane_copier_t>(0x10), static_cast<peerlane_copier_t>(nullptr),
                            reinterpret_cast<peerlane_copier_t>(reinterpret_cast<char*>(copier_) + 1)}) {
    EXPECT_EQ(peerlane_copy(bogus, peerlane_host_buffer(&byte, 1), peerlane_device_buffer(device_, 1)), EINVAL);
    EXPECT_EQ(peerlane_copier_close(bogus), EINVAL);
  }
  EXPECT_EQ(peerlane_registration_release(reinterpret_cast<peerlane_registration_t>(0x20)), EINVAL);
  EXPECT_EQ(peerlane_copier_open(nullptr, nullptr), EINVAL);
  peerlane_copier_options wrong{};
  peerlane_copier_t none = nullptr;
  EXPECT_EQ(peerlane_copier_open(&wrong, &none), EINVAL) << "struct_bytes is 0";
  wrong.struct_bytes = sizeof wrong;
  wrong.reserved = 1;
  EXPECT_EQ(peerlane_copier_open(&wrong, &none), EINVAL) << "a later release may give it a meaning";
}

TEST_F(peerlane_copies, AForkedChildIsRefused) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    _exit(peerlane_copy(copier_, peerlane_host_buffer(&byte, 1), peerlane_device_buffer(device_, 1)) == EACCES &&
                  peerlane_copier_close(copier_) == EACCES
              ? 0
              : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

TEST_F(peerlane_copies, ExplainsItself) {
  std::size_t needed = 0;
  char text[16];
  ASSERT_EQ(peerlane_copier_explain(copier_, PEERLANE_TO_HOST, 0, 4096, text, sizeof text, &needed), 0);
  EXPECT_GT(needed, sizeof text);
  EXPECT_EQ(std::strlen(text), sizeof text - 1);
  EXPECT_EQ(peerlane_copier_explain(copier_, 7, 0, 4096, text, sizeof text, &needed), EINVAL);
}

TEST_F(peerlane_copies, TheCppLayerOwns) {
  auto copier = peerlane::copier::open();
  ASSERT_TRUE(copier) << copier.error().message;
  const auto data = random_bytes(100, 4);
  ASSERT_TRUE(copier->copy(peerlane::device_buffer(device_, data.size()), data));
  std::vector<unsigned char> got(100);
  {
    auto later = copier->begin({{got, peerlane::device_buffer(device_, 100)}});
    ASSERT_TRUE(later) << later.error().message;
    auto registered = copier->register_memory(peerlane::device_buffer(device_, 100));
    ASSERT_TRUE(registered);
    auto hot = copier->keep_hot(0);
    ASSERT_TRUE(hot);
    EXPECT_EQ(copier->close().code(), EBUSY);
    EXPECT_NE(copier->get(), nullptr) << "it is still open";
    ASSERT_TRUE(later->wait());
  }
  EXPECT_EQ(got, data);
  auto reason = copier->explain(PEERLANE_TO_DEVICE, true, 1 << 20);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("pageable"), std::string::npos);
  EXPECT_TRUE(copier->close());
  EXPECT_EQ(copier->get(), nullptr);
}

}  // namespace
}  // namespace pl::test
