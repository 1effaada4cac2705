// SPDX-License-Identifier: Apache-2.0
// The simulated GPU in the test's own process, and small helpers over its CUDA calls.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/driver_table.hpp"
#include "test/support/descriptor_count.hpp"

namespace pl::test {

// Loads the simulated libcuda (once) so that cu::driver() finds it, and initialises it. Aborts the test program if the
// library is missing: it is built by the same build.
const cu::driver_table& simulated_cuda();

// Entry points that only the simulator has (sim/object.cpp).
int sim_object_fd(unsigned client, unsigned object);
std::uint64_t sim_object_bytes(unsigned client, unsigned object);

// The simulator's retained primary context, current on the calling thread.
class current_device {
 public:
  explicit current_device(int ordinal = 0);
  ~current_device();
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;

 private:
  int ordinal_;
};

class device_buffer {
 public:
  explicit device_buffer(std::size_t bytes);
  ~device_buffer();
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;
  std::uint64_t pointer() const { return pointer_; }
  std::size_t bytes() const { return bytes_; }
  void free_now();

 private:
  std::uint64_t pointer_ = 0;
  std::size_t bytes_;
};

// Adjacent cuMemCreate pieces (each a multiple of 2 MiB) mapped next to each other on device 0.
class vmm_buffer {
 public:
  explicit vmm_buffer(std::vector<std::size_t> piece_bytes, int handle_types = 0);
  ~vmm_buffer();
  vmm_buffer(const vmm_buffer&) = delete;
  vmm_buffer& operator=(const vmm_buffer&) = delete;
  std::uint64_t pointer() const { return pointer_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint64_t pointer_ = 0;
  std::size_t bytes_ = 0, reserved_ = 0;
  std::vector<cu::physical_t> pieces_;
};

std::vector<unsigned char> random_bytes(std::size_t count, std::uint64_t seed);
std::vector<unsigned char> device_bytes(std::uint64_t pointer, std::size_t count);
void set_device_bytes(std::uint64_t pointer, const std::vector<unsigned char>& bytes);

// Lines of /proc/self/maps that mention `needle` ("" counts all).
int mapping_count(const char* needle);

}  // namespace pl::test
