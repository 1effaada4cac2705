// SPDX-License-Identifier: Apache-2.0
// mapping_cache over the simulated GPU: dmabuf directly, rm and gdrdrv over fake kernels, with a counter in front that says
// what is left.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "counting_io.hpp"
#include "fake_gdrdrv.hpp"
#include "fake_rm.hpp"
#include "mapping_cache.hpp"
#include "sim_fixture.hpp"

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

}  // namespace pl::test
