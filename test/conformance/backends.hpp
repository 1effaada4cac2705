// SPDX-License-Identifier: Apache-2.0
// The backends under test, each over the simulated GPU: dmabuf directly, rm and gdrdrv over fake kernels. In the guests of
// test/kernel it is the real gdrdrv module alone: there the environment says CONFORMANCE_ON_MODULE=1.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "map/registry.hpp"
#include "test/support/counting_io.hpp"
#include "test/support/fake_gdrdrv.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {

struct backend_case {
  const char* label;
  const char* backend;
  unsigned gdrdrv_minor = 6;
  bool is_module = false;                     // /dev/gdrdrv of this machine
  const char* driver_version = "580.159.04";  // of the resource manager
};

inline void PrintTo(const backend_case& value, std::ostream* out) { *out << value.label; }

inline const backend_case kModule = {"module", "gdrdrv", 6, true};

inline bool on_module() {
  const char* text = std::getenv("CONFORMANCE_ON_MODULE");
  return text != nullptr && std::string(text) == "1";
}

inline std::vector<backend_case> all_backends() {
  if (on_module()) return {kModule};
  return {{"dmabuf", "dmabuf"},
          {"rm", "rm"},
          {"rm_proved", "rm", 6, false, "570.86.10"},  // known by reading only: first mappings are proved
          {"gdrdrv_2_0", "gdrdrv", 0},
          {"gdrdrv_2_4", "gdrdrv", 4},
          {"gdrdrv_2_6", "gdrdrv", 6}};
}

// Backends that can join several memory objects here. The fake gdrdrv module pins within one.
inline std::vector<backend_case> joining_backends() {
  if (on_module()) return {kModule};
  return {{"dmabuf", "dmabuf"}, {"rm", "rm"}};
}

// With gdrdrv the module's own page checks decide about granules, and a refusal's words are its own.
inline std::vector<backend_case> granule_backends() { return {{"dmabuf", "dmabuf"}, {"rm", "rm"}}; }

inline std::string label_of(const testing::TestParamInfo<backend_case>& info) { return info.param.label; }

// A kernel, a counter in front of it, a device context, and the check that nothing is left when the test ends.
class backend_test : public testing::TestWithParam<backend_case> {
 protected:
  void SetUp() override {
    simulated_cuda();
    context_ = std::make_unique<current_device>(0);
    if (std::string(GetParam().backend) == "rm") {
      auto rm = std::make_unique<fake_rm>();
      rm->settings().version = GetParam().driver_version;
      kernel_ = std::move(rm);
    }
    if (std::string(GetParam().backend) == "gdrdrv" && !GetParam().is_module)
      kernel_ = std::make_unique<fake_gdrdrv>(2, GetParam().gdrdrv_minor);
    io_ = std::make_unique<counting_io>(kernel_ ? *kernel_ : real_device_io());
    { const device_buffer warm_up(1 << 20); }
    descriptors_before_ = open_descriptor_count();
  }

  void TearDown() override {
    EXPECT_EQ(io_->open_descriptors(), 0) << "descriptors left open";
    EXPECT_EQ(io_->mapped_bytes(), 0u) << "address ranges left mapped";
    if (auto* rm = dynamic_cast<fake_rm*>(kernel_.get())) {
      EXPECT_EQ(rm->live_clients(), 0);
      EXPECT_EQ(rm->live_objects(), 0);
      EXPECT_EQ(rm->live_mappings(), 0);
      EXPECT_EQ(rm->protocol_errors(), 0);
    }
    if (auto* module = dynamic_cast<fake_gdrdrv*>(kernel_.get())) { EXPECT_EQ(module->live_pins(), 0); }
    EXPECT_EQ(open_descriptor_count(), descriptors_before_);
  }

  session* open() {
    auto opened = open_session({io_.get(), &simulated_cuda()}, GetParam().backend);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? *opened : nullptr;
  }
  static pin_request exactly(std::uint64_t pointer, std::uint64_t bytes) {
    pin_request request;
    request.range = {pointer, bytes};
    return request;
  }
  static pin_request in_granules(std::uint64_t pointer, std::uint64_t bytes) {
    pin_request request = exactly(pointer, bytes);
    request.granule_bytes = kGpuPageBytes;
    request.rule = range_rule::granule;
    return request;
  }
  // Pins and maps exactly this range.
  static region* map_exactly(session* s, std::uint64_t pointer, std::uint64_t bytes) {
    auto pinned = pin_region(s, exactly(pointer, bytes));
    EXPECT_TRUE(pinned) << (pinned ? "" : pinned.error().message);
    if (!pinned) return nullptr;
    auto mapped = map_region_exactly(s, *pinned);
    EXPECT_TRUE(mapped) << (mapped ? "" : mapped.error().message);
    return mapped ? *pinned : nullptr;
  }

  std::unique_ptr<device_io> kernel_;
  std::unique_ptr<counting_io> io_;
  std::unique_ptr<current_device> context_;
  int descriptors_before_ = 0;
};

}  // namespace pl::test
