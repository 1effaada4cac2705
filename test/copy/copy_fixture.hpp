// SPDX-License-Identifier: Apache-2.0
// What tests of the executors share: memory with canaries around it on either side, a gate that holds a stream back until
// the test says so, and contexts of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"
#include "copy/transfer.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::copy {

using bytes_t = std::vector<unsigned char>;

constexpr std::size_t kCanaryBytes = 256;
constexpr unsigned char kCanary = 0xC5;
constexpr std::span<const transfer> kNothing{};  // a submission that is only a mark

inline gpu_context context_of(int ordinal, const cu::driver_table& cuda = test::simulated_cuda(),
                              cu::context_t owner = nullptr) {
  auto found = find_context(cuda, ordinal, owner);
  EXPECT_TRUE(found);
  return found ? *found : gpu_context{};
}

// `bytes` of device memory at any alignment between canaries.
class guarded_device {
 public:
  explicit guarded_device(std::size_t bytes, std::size_t skew = 0, int ordinal = 0)
      : current_(ordinal), bytes_(bytes), skew_(skew), buffer_(bytes + skew + 2 * kCanaryBytes) {
    test::set_device_bytes(buffer_.pointer(), bytes_t(buffer_.bytes(), kCanary));
  }
  std::uint64_t address() const { return buffer_.pointer() + kCanaryBytes + skew_; }
  void set(const bytes_t& data) { test::set_device_bytes(address(), data); }
  // What lies between the canaries, which must be whole.
  bytes_t get() const {
    const auto all = test::device_bytes(buffer_.pointer(), buffer_.bytes());
    const std::size_t first = kCanaryBytes + skew_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i >= first && i < first + bytes_) continue;
      if (all[i] != kCanary) {
        ADD_FAILURE() << "device canary at " << static_cast<long>(i) - static_cast<long>(first) << " of " << bytes_;
        break;
      }
    }
    return {all.begin() + static_cast<long>(first), all.begin() + static_cast<long>(first + bytes_)};
  }

 private:
  const test::current_device current_;
  const std::size_t bytes_, skew_;
  test::device_buffer buffer_;
};

// The same in host memory, pinned or not.
class guarded_host {
 public:
  explicit guarded_host(std::size_t bytes, std::size_t skew = 0) : bytes_(bytes), skew_(skew) {
    pageable_.assign(bytes + skew + 2 * kCanaryBytes, kCanary);
    all_ = pageable_.data();
  }
  guarded_host(const gpu_context& pinned_for, std::size_t bytes, std::size_t skew = 0) : bytes_(bytes), skew_(skew) {
    auto made = pinned_buffer::make(pinned_for, bytes + skew + 2 * kCanaryBytes);
    EXPECT_TRUE(made);
    pinned_ = *std::move(made);
    all_ = reinterpret_cast<unsigned char*>(pinned_.data());
    std::memset(all_, kCanary, bytes + skew + 2 * kCanaryBytes);
  }
  unsigned char* data() const { return all_ + kCanaryBytes + skew_; }
  std::uint64_t address() const { return address_of(data()); }
  void set(const bytes_t& data_in) { std::copy(data_in.begin(), data_in.end(), data()); }
  bytes_t get() const {
    for (std::size_t i = 0; i < kCanaryBytes; ++i)
      if (data()[-1 - static_cast<long>(i)] != kCanary || data()[bytes_ + i] != kCanary) {
        ADD_FAILURE() << "host canary " << i << " of " << bytes_ << " bytes";
        break;
      }
    return {data(), data() + bytes_};
  }

 private:
  const std::size_t bytes_, skew_;
  bytes_t pageable_;
  pinned_buffer pinned_;
  unsigned char* all_;
};

// A stream that goes on when open() is called. Of the context that is current where it is made.
class gate {
 public:
  gate() {
    const auto& cuda = test::simulated_cuda();
    void* memory = nullptr;
    EXPECT_EQ(cuda.cuMemHostAlloc(&memory, 64, 0), 0);
    word_ = static_cast<std::uint32_t*>(memory);
    __atomic_store_n(word_, 0u, __ATOMIC_RELEASE);
    EXPECT_EQ(cuda.cuStreamCreate(&stream_, cu::stream_flag::non_blocking), 0);
    EXPECT_EQ(cuda.cuStreamWaitValue32_v2(stream_, address_of(word_), 1, cu::wait_value::eq), 0);
  }
  ~gate() {
    open();
    test::simulated_cuda().cuStreamSynchronize(stream_);
    test::simulated_cuda().cuStreamDestroy_v2(stream_);
    test::simulated_cuda().cuMemFreeHost(word_);
  }
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;

  cu::stream_t stream() const { return stream_; }
  void open() { __atomic_store_n(word_, 1u, __ATOMIC_RELEASE); }

 private:
  std::uint32_t* word_ = nullptr;
  cu::stream_t stream_ = nullptr;
};

// A context of the test's own, which it may destroy. Not current anywhere.
class own_context {
 public:
  explicit own_context(int ordinal = 0) {
    cu::context_t popped = nullptr;
    EXPECT_EQ(test::simulated_cuda().cuCtxCreate_v2(&handle_, 0, ordinal), 0);
    EXPECT_EQ(test::simulated_cuda().cuCtxPopCurrent_v2(&popped), 0);
  }
  ~own_context() { destroy(); }
  own_context(const own_context&) = delete;
  own_context& operator=(const own_context&) = delete;

  cu::context_t handle() const { return handle_; }
  void destroy() {
    if (handle_ != nullptr) { EXPECT_EQ(test::simulated_cuda().cuCtxDestroy_v2(handle_), 0); }
    handle_ = nullptr;
  }
  void forget() { handle_ = nullptr; }  // destroyed by somebody else

 private:
  cu::context_t handle_ = nullptr;
};

// The value that `body` returns in a forked child; -1 if it crashed there.
template <class Body>
int in_forked_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace pl::copy
