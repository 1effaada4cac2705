// SPDX-License-Identifier: Apache-2.0
// Windows of another GPU's memory: kernels of one simulated GPU put into it, and kernels of the other see bytes and flag.
#include <cstdlib>

#include "test/device/session_fixture.hpp"

namespace {

using namespace pl;
using pl::test::kLongTimeoutNs;
using pl::test::kWindowBytes;

class peer_window : public pl::test::device_session {
 protected:
  void SetUp() override {
    device_session::SetUp();
    must(cuda().cuDevicePrimaryCtxRetain(&other_context_, 1));
    must(cuda().cuCtxSetCurrent(other_context_));
    auto loaded = cu::load_kernels(cuda(), kernels::device_put_kernels());
    ASSERT_TRUE(loaded) << loaded.error().message;
    other_module_ = *loaded;
    must(cuda().cuMemAlloc_v2(&other_, kWindowBytes));
    must(cuda().cuMemsetD8_v2(other_, 0, kWindowBytes));
    must(cuda().cuCtxSynchronize());
    must(cuda().cuCtxSetCurrent(context_));
    const auto rc = cuda().cuCtxEnablePeerAccess(other_context_, 0);  // a kernel polls a word there
    EXPECT_TRUE(rc == cu::error_code::success || rc == cu::error_code::peer_access_already_enabled);
  }
  void TearDown() override {
    session_.reset();
    must(cuda().cuCtxSetCurrent(other_context_));
    must(cuda().cuMemFree_v2(other_));
    must(cuda().cuModuleUnload(other_module_));
    must(cuda().cuCtxSetCurrent(context_));
    must(cuda().cuDevicePrimaryCtxRelease_v2(1));
    device_session::TearDown();
  }
  // A window as kernels with CUDA's peer access use it: they load from it too.
  peerlane_device_window with_address(peerlane_device_window window, std::uint64_t address) const {
    window.address = address;
    return window;
  }
  cu::context_t other_context_ = nullptr;
  cu::module_t other_module_ = nullptr;
  cu::device_ptr other_ = 0;
};

// Only channels reach another GPU's memory.
INSTANTIATE_TEST_SUITE_P(links, peer_window, testing::Values(device::ring_backend::channels), pl::test::name_of_backend);

TEST_P(peer_window, PutsAndGets) {
  open();
  const auto sent = fill_device(device_, 3);
  const auto window = add(other_, kWindowBytes);
  EXPECT_EQ(window.address, 0u) << "kernels reach it by rings";
  EXPECT_EQ(window.is_outside, unsigned{PEERLANE_DEVICE_ON_PEER});
  EXPECT_TRUE(are_all(run("put_once", 1, 1, ring(), window, std::uint64_t{5}, gpu_, std::uint64_t{1001},
                          std::uint64_t{70'000}, unsigned{PEERLANE_DEVICE_FLUSHED}),
                      0));
  const auto got = read_device(other_, kWindowBytes);
  EXPECT_TRUE(std::equal(got.begin() + 5, got.begin() + 5 + 70'000, sent.begin() + 1001));
  EXPECT_EQ(got[4], std::byte{0});
  EXPECT_EQ(got[70'005], std::byte{0});
  // The other way: from the other GPU's memory into this one's.
  EXPECT_TRUE(are_all(run("put_once", 1, 1, ring(), far_, std::uint64_t{0}, window, std::uint64_t{5}, std::uint64_t{70'000},
                          unsigned{PEERLANE_DEVICE_FLUSHED}),
                      0));
  const auto back = read_device(device_ + kWindowBytes, 70'000);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), sent.begin() + 1001));
}

TEST_P(peer_window, AKernelOfTheOtherGpuSeesTheSignalBehindItsBytes) {
  open();
  cu::stream_t first = nullptr, second = nullptr;
  must(cuda().cuStreamCreate(&first, 1));
  const auto data = add(device_, 4096);
  const auto remote = add(other_, 4096), words = add(other_ + 65536, 4096);
  must(cuda().cuCtxSetCurrent(other_context_));
  must(cuda().cuStreamCreate(&second, 1));
  cu::device_ptr other_answers = 0;
  must(cuda().cuMemAlloc_v2(&other_answers, 8));
  cu::function_t consume = nullptr;
  must(cuda().cuModuleGetFunction(&consume, other_module_, "consume"));
  constexpr unsigned kRounds = 60;
  auto seen = with_address(remote, other_), flags = with_address(words, other_ + 65536);
  unsigned rounds = kRounds;
  std::uint64_t timeout_ns = kLongTimeoutNs, answers = other_answers;
  void* parameters[] = {&seen, &flags, &rounds, &timeout_ns, &answers};
  must(cuda().cuLaunchKernel(consume, 1, 1, 1, 1, 1, 1, 0, second, parameters, nullptr));
  must(cuda().cuCtxSetCurrent(context_));
  launch("produce", 1, 1, first, ring(), data, remote, flags, rounds, std::uint64_t{answers_});
  EXPECT_EQ(answers_of(1)[0], 0);
  must(cuda().cuCtxSetCurrent(other_context_));
  must(cuda().cuStreamSynchronize(second));
  long long wrong = -1;
  must(cuda().cuMemcpyDtoH_v2(&wrong, other_answers, sizeof wrong));
  EXPECT_EQ(wrong, 0) << "words that were old, or an error";
  must(cuda().cuMemFree_v2(other_answers));
  must(cuda().cuStreamDestroy_v2(second));
  must(cuda().cuCtxSetCurrent(context_));
  must(cuda().cuStreamDestroy_v2(first));
}

TEST_P(peer_window, TheProxyRefusesIt) {
  device::session_options wanted;
  wanted.backend = device::ring_backend::proxy;
  auto opened = device::session::open(cuda(), wanted);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto refused = (*opened)->add_window(other_, kWindowBytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("device 1"), std::string::npos) << refused.error().message;
}

TEST_P(peer_window, WithoutALinkThereIsNone) {
  open();
  ASSERT_EQ(setenv("PEERLANE_SIM_MODE", "no_peers", 1), 0);
  const auto refused = session_->add_window(other_, kWindowBytes);
  unsetenv("PEERLANE_SIM_MODE");
  EXPECT_EQ(refused.code(), EXDEV);
  EXPECT_FALSE(refused.error().message.empty());
}

}  // namespace
