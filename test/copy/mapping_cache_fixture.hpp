// SPDX-License-Identifier: Apache-2.0
// mapping_cache over the simulated GPU: dmabuf directly, rm and gdrdrv over fake kernels, with a counter in front that says
// what is left.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "copy/mapping_cache.hpp"
#include "test/support/counting_io.hpp"
#include "test/support/fake_gdrdrv.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {

constexpr std::size_t kMiB = std::size_t{1} << 20;

inline result<copy::mapping_cache::hold> find(copy::mapping_cache& cache, std::uint64_t pointer, std::size_t bytes) {
  const auto info = cu::inspect_pointer(simulated_cuda(), pointer);
  if (!info) return info.error();
  return cache.find(simulated_cuda(), *info, pointer, bytes);
}

// Puts a kernel of the given kind behind the process's default device_io, and checks that nothing is left at the end.
class mapping_kernel {
 public:
  explicit mapping_kernel(const std::string& backend) {
    simulated_cuda();
    if (backend == "rm") kernel_ = std::make_unique<fake_rm>();
    if (backend == "gdrdrv") kernel_ = std::make_unique<fake_gdrdrv>(2, 4);  // the last one without persistent mappings
    io_ = std::make_unique<counting_io>(kernel_ ? *kernel_ : real_device_io());
    set_default_device_io_for_tests(io_.get());
  }
  ~mapping_kernel() {
    set_default_device_io_for_tests(nullptr);
    expect_nothing_left();
  }
  mapping_kernel(const mapping_kernel&) = delete;
  mapping_kernel& operator=(const mapping_kernel&) = delete;

  void expect_nothing_mapped() const {
    EXPECT_EQ(io_->mapped_bytes(), 0u);
    if (auto* rm = as_rm()) { EXPECT_EQ(rm->live_mappings(), 0); }
    if (auto* module = dynamic_cast<fake_gdrdrv*>(kernel_.get())) { EXPECT_EQ(module->live_pins(), 0); }
  }
  void expect_nothing_left() const {
    expect_nothing_mapped();
    EXPECT_EQ(io_->open_descriptors(), 0);
    if (auto* rm = as_rm()) {
      EXPECT_EQ(rm->live_clients(), 0);
      EXPECT_EQ(rm->live_objects(), 0);
      EXPECT_EQ(rm->protocol_errors(), 0);
    }
  }
  counting_io& io() { return *io_; }
  fake_rm* as_rm() const { return dynamic_cast<fake_rm*>(kernel_.get()); }

 private:
  std::unique_ptr<device_io> kernel_;
  std::unique_ptr<counting_io> io_;
};

inline copy::mapping_cache::options without_sweep(const std::string& backend) {
  copy::mapping_cache::options wanted;
  wanted.sweep_ms = 0;
  wanted.backend = backend;
  return wanted;
}

inline copy::mapping_cache::options small_windows(const std::string& backend, std::uint64_t capacity_bytes) {
  auto wanted = without_sweep(backend);
  wanted.window_bytes = 2 * kMiB;
  wanted.capacity_bytes = capacity_bytes;
  return wanted;
}

template <class Condition>
bool comes_true(Condition&& condition, int most_ms = 10000) {
  for (int ms = 0; ms < most_ms && !condition(); ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

// A test that runs on each backend.
class mapping_cache_test : public testing::TestWithParam<const char*> {
 protected:
  std::string backend() const { return GetParam(); }
  const cu::driver_table& cuda = simulated_cuda();
  current_device context{0};
  mapping_kernel kernel{GetParam()};
};

inline const char* const kMappingBackends[] = {"dmabuf", "rm", "gdrdrv"};
inline std::string backend_name(const testing::TestParamInfo<const char*>& given) { return given.param; }

// Address space for three pieces, and two memories of two pieces each to map there.
class two_slots {
 public:
  two_slots() {
    EXPECT_EQ(cuda.cuMemAddressReserve(&base, 6 * kMiB, 2 * kMiB, 0, 0), 0);
    cu::allocation_prop prop{};
    prop.type = cu::allocation_type::pinned;
    prop.location = {cu::location_type::device, 0};
    prop.flags.gpu_direct_rdma_capable = 1;
    for (auto& each : handles) EXPECT_EQ(cuda.cuMemCreate(&each, 4 * kMiB, &prop, 0), 0);
  }
  ~two_slots() {
    for (const auto each : handles) cuda.cuMemRelease(each);
    cuda.cuMemAddressFree(base, 6 * kMiB);
  }
  two_slots(const two_slots&) = delete;
  two_slots& operator=(const two_slots&) = delete;
  void map(std::size_t handle, std::uint64_t address, std::size_t bytes) const {
    const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
    EXPECT_EQ(cuda.cuMemMap(address, bytes, 0, handles[handle], 0), 0);
    EXPECT_EQ(cuda.cuMemSetAccess(address, bytes, &access, 1), 0);
  }
  void unmap(std::uint64_t address, std::size_t bytes) const { EXPECT_EQ(cuda.cuMemUnmap(address, bytes), 0); }

  const cu::driver_table& cuda = simulated_cuda();
  std::uint64_t base = 0;
  cu::physical_t handles[2] = {};
};

}  // namespace pl::test
