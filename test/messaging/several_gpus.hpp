// SPDX-License-Identifier: Apache-2.0
// Memory of the host and of two GPUs in one process, and a current context that changes.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "test/messaging/job.hpp"

namespace pl::messaging {

inline constexpr int kPlaces = 3;  // host memory, GPU 0, GPU 1

// Memory of one of them. The test's own accesses have a context, whichever is current at the time.
class placed {
 public:
  placed(int place, std::size_t bytes) : place_(place) {
    const test::current_device active(device());
    memory_.emplace(place > 0, bytes);
  }
  ~placed() {
    const test::current_device active(device());
    memory_.reset();
  }
  placed(const placed&) = delete;
  placed& operator=(const placed&) = delete;
  buffer all() const { return memory_->all(); }
  void set(const std::vector<unsigned char>& bytes) {
    const test::current_device active(device());
    memory_->set(bytes);
  }
  std::vector<unsigned char> get(std::size_t bytes) const {
    const test::current_device active(device());
    return memory_->get(bytes);
  }

 private:
  int device() const { return place_ > 0 ? place_ - 1 : 0; }
  int place_;
  std::optional<piece> memory_;
};

// Both GPUs' contexts live as long as it. One after the other is current, or none.
class turning_device {
 public:
  turning_device() {
    cuda_.cuCtxGetCurrent(&contexts_[0]);
    cuda_.cuDevicePrimaryCtxRetain(&contexts_[1], 1);
  }
  ~turning_device() {
    cuda_.cuCtxSetCurrent(contexts_[0]);
    cuda_.cuDevicePrimaryCtxRelease_v2(1);
  }
  turning_device(const turning_device&) = delete;
  turning_device& operator=(const turning_device&) = delete;
  void turn() { cuda_.cuCtxSetCurrent(contexts_[++turn_ % contexts_.size()]); }

 private:
  const cu::driver_table& cuda_ = test::simulated_cuda();
  std::array<cu::context_t, 3> contexts_{};  // the last is none
  std::size_t turn_ = 0;
};

}  // namespace pl::messaging
