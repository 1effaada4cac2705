// SPDX-License-Identifier: Apache-2.0
// A session of the simulated GPU with one ring, memory on both sides, and kernels that use them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "device_put_kernels_image.hpp"

namespace pl::test {

constexpr std::size_t kWindowBytes = 4u << 20;
constexpr std::uint64_t kShortTimeoutNs = 300'000'000;  // where a wait is to fail
constexpr std::uint64_t kLongTimeoutNs = 20'000'000'000;

// By what the parameter says.
class device_session : public testing::TestWithParam<device::ring_backend> {
 protected:
  static const cu::driver_table& cuda() { return **cu::driver(); }
  static void must(cu::result_t rc) { ASSERT_EQ(rc, cu::error_code::success); }

  void SetUp() override {
    must(cuda().cuInit(0));
    must(cuda().cuDevicePrimaryCtxRetain(&context_, 0));
    must(cuda().cuCtxSetCurrent(context_));
    auto loaded = cu::load_kernels(cuda(), kernels::device_put_kernels());
    ASSERT_TRUE(loaded) << loaded.error().message;
    module_ = *loaded;
    must(cuda().cuMemAlloc_v2(&device_, 2 * kWindowBytes));
    must(cuda().cuMemAlloc_v2(&answers_, kAnswers * 8));
    must(cuda().cuMemHostAlloc(&host_memory_, kWindowBytes, 0));
    host_ = static_cast<std::byte*>(host_memory_);
  }
  void TearDown() override {
    session_.reset();
    must(cuda().cuMemFreeHost(host_memory_));
    if (device_ != 0) must(cuda().cuMemFree_v2(device_));
    must(cuda().cuMemFree_v2(answers_));
    must(cuda().cuModuleUnload(module_));
    must(cuda().cuCtxSetCurrent(nullptr));
    must(cuda().cuDevicePrimaryCtxRelease_v2(0));
  }

  void open(std::uint64_t timeout_ns = kLongTimeoutNs, std::uint32_t segments = 64, unsigned rings = 1) {
    device::session_options wanted;
    wanted.backend = GetParam();
    wanted.rings = rings;
    wanted.wakeups = wakeups_;
    wanted.ring.segments = segments;
    wanted.ring.timeout_ns = timeout_ns;
    auto opened = device::session::open(cuda(), wanted);
    ASSERT_TRUE(opened) << opened.error().message;
    session_ = std::move(*opened);
    gpu_ = add(device_, kWindowBytes);
    far_ = add(device_ + kWindowBytes, kWindowBytes);
    host_window_ = add(reinterpret_cast<std::uint64_t>(host_), kWindowBytes);
  }
  peerlane_device_window add(std::uint64_t address, std::uint64_t size_bytes) {
    auto made = session_->add_window(address, size_bytes);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : peerlane_device_window{};
  }
  const peerlane_device_ring& ring(unsigned index = 0) const { return session_->ring(index).handle(); }

  // Launches on a stream of its own; answers_of() waits for it.
  template <class... Args>
  void launch(const char* name, unsigned blocks, unsigned threads, cu::stream_t stream, Args... args) {
    cu::function_t function = nullptr;
    must(cuda().cuModuleGetFunction(&function, module_, name));
    void* parameters[] = {&args...};
    must(cuda().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr));
  }
  std::vector<long long> answers_of(std::size_t count) {
    must(cuda().cuCtxSynchronize());
    std::vector<long long> out(count);
    must(cuda().cuMemcpyDtoH_v2(out.data(), answers_, count * 8));
    return out;
  }
  // A launch, and how often which answer came.
  template <class... Args>
  std::vector<long long> run(const char* name, unsigned blocks, unsigned threads, Args... args) {
    launch(name, blocks, threads, nullptr, args..., std::uint64_t{answers_});
    return answers_of(std::size_t{blocks} * threads);
  }
  bool are_all(const std::vector<long long>& answers, long long wanted) const {
    for (const long long one : answers) {
      if (one == wanted) continue;
      if (session_ == nullptr) return ADD_FAILURE() << "an answer is " << one << ", not " << wanted, false;
      const auto now = session_->ring(0).read();
      ADD_FAILURE() << "an answer is " << one << ", not " << wanted << "; posted " << now.posted << ", completed "
                    << now.completed << (now.reason ? ", " + now.reason->message : "");
      return false;
    }
    return true;
  }

  std::vector<std::byte> fill_device(cu::device_ptr address, unsigned seed) {
    std::vector<std::byte> bytes(kWindowBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + i * 13 + (i >> 9));
    must(cuda().cuMemcpyHtoD_v2(address, bytes.data(), bytes.size()));
    return bytes;
  }
  std::vector<std::byte> read_device(cu::device_ptr address, std::size_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    must(cuda().cuMemcpyDtoH_v2(bytes.data(), address, size_bytes));
    return bytes;
  }

  static constexpr std::size_t kAnswers = 4096;
  cu::context_t context_ = nullptr;
  cu::module_t module_ = nullptr;
  cu::device_ptr device_ = 0, answers_ = 0;
  void* host_memory_ = nullptr;
  std::byte* host_ = nullptr;
  std::unique_ptr<device::session> session_;
  copy::trial wakeups_ = copy::trial::always;
  peerlane_device_window gpu_{}, far_{}, host_window_{};
};

inline std::string name_of_backend(const testing::TestParamInfo<device::ring_backend>& one) {
  return one.param == device::ring_backend::channels ? "channels" : "proxy";
}
inline const auto kRingBackends = testing::Values(device::ring_backend::channels, device::ring_backend::proxy);

}  // namespace pl::test
