// SPDX-License-Identifier: Apache-2.0
// The error convention as clients know it: each misuse has one errno, the one that the original returns with its module
// (the rows that make sense without one). Method: a table of calls, each on fresh objects, on the simulated GPU through
// the shared library; errno must come out as it went in, and nothing may answer -1 or a CUresult.
#include <errno.h>
#include <gdrapi.h>

#include <cstring>
#include <functional>
#include <ostream>

#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBytes = 4 << 20;

// What a row finds ready: an open instance, a pin (`aligned`), a mapped pin (`live`), and their memory.
struct stage {
  gdr_t g = nullptr;
  std::uint64_t device = 0;
  gdr_mh_t aligned{}, live{};
  char* va = nullptr;
};

struct row {
  const char* misuse;
  int wanted;
  std::function<int(stage&)> call;
};

void PrintTo(const row& value, std::ostream* out) { *out << value.misuse; }

int pin_at(stage& s, std::uint64_t address, std::size_t size, std::uint32_t flags = 0) {
  gdr_mh_t handle{~0ul};
  const int code = gdr_pin_buffer_v2(s.g, address, size, flags, &handle);
  if (code != 0 && handle.h != 0) return -1;  // libgdsync tests the value of a handle that was never made
  if (code == 0 && gdr_unpin_buffer(s.g, handle) != 0) return -1;
  return code;
}

int map_pin_of(stage& s, std::uint64_t address, std::size_t size) {
  gdr_mh_t handle{};
  void* va = nullptr;
  if (gdr_pin_buffer(s.g, address, size, 0, 0, &handle) != 0) return -1;
  const int code = gdr_map(s.g, handle, &va, size);
  return gdr_unpin_buffer(s.g, handle) == 0 && va == nullptr ? code : -1;
}

const row kRows[] = {
    {"pin_handle_null", EINVAL, [](stage& s) { return gdr_pin_buffer(s.g, s.device, 65536, 0, 0, nullptr); }},
    {"pin_v2_handle_null", EINVAL, [](stage& s) { return gdr_pin_buffer_v2(s.g, s.device, 65536, 0, nullptr); }},
    {"pin_address_0", EINVAL, [](stage& s) { return pin_at(s, 0, 65536); }},
    {"pin_size_0", EINVAL, [](stage& s) { return pin_at(s, s.device, 0); }},
    {"pin_unknown_flag_bits_are_dropped", 0, [](stage& s) { return pin_at(s, s.device, 65536, 0xfffffffe); }},
    {"pin_unaligned_is_accepted", 0, [](stage& s) { return pin_at(s, s.device + 5, 100); }},
    {"pin_host_memory", EINVAL,
     [](stage& s) {
       static char on_host[65536];
       return pin_at(s, reinterpret_cast<std::uint64_t>(on_host), sizeof on_host);
     }},
    {"pin_beyond_the_allocation", EINVAL, [](stage& s) { return pin_at(s, s.device, kBytes + 64 * kBytes); }},
    {"pin_overflow", EINVAL, [](stage& s) { return pin_at(s, ~std::uint64_t{0} - 100, 4096); }},
    {"pin_managed_memory", EINVAL,
     [](stage& s) {
       std::uint64_t managed = 0;
       if (simulated_cuda().cuMemAllocManaged(&managed, 65536, 1) != 0) return -1;
       const int code = pin_at(s, managed, 65536);
       simulated_cuda().cuMemFree_v2(managed);
       return code;
     }},
    {"pin_freed_memory", EINVAL,
     [](stage& s) {
       device_buffer gone(kBytes);
       const std::uint64_t was = gone.pointer();
       gone.free_now();
       return pin_at(s, was, 65536);
     }},
    {"pin_with_null_instance", EINVAL, [](stage& s) { return s.g = nullptr, pin_at(s, s.device, 65536); }},
    {"map_already_mapped", EAGAIN,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map(s.g, s.live, &va, 65536);
     }},
    {"map_flags_too_large", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map_v2(s.g, s.aligned, &va, 65536, 4);
     }},
    {"map_flags_negative", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map_v2(s.g, s.aligned, &va, 65536, -1);
     }},
    {"map_address_not_on_64_KiB", EINVAL, [](stage& s) { return map_pin_of(s, s.device + 8, 65536); }},
    {"map_address_on_4_KiB_only", EINVAL, [](stage& s) { return map_pin_of(s, s.device + 4096, 65536); }},
    {"map_larger_than_the_pin", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map(s.g, s.aligned, &va, 65536 + 1);
     }},
    {"map_size_0", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map(s.g, s.aligned, &va, 0);
     }},
    {"map_size_wraps", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map(s.g, s.aligned, &va, ~std::size_t{0});
     }},
    {"map_null_output", EINVAL, [](stage& s) { return gdr_map(s.g, s.aligned, nullptr, 65536); }},
    {"map_cached_is_not_available", EOPNOTSUPP,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map_v2(s.g, s.aligned, &va, 65536, GDR_MAP_FLAG_REQ_CACHE_MAPPING);
     }},
    {"map_device_is_not_available", EOPNOTSUPP,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map_v2(s.g, s.aligned, &va, 65536, GDR_MAP_FLAG_REQ_DEVICE_MAPPING);
     }},
    {"map_wc_is_available", 0,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map_v2(s.g, s.aligned, &va, 65536, GDR_MAP_FLAG_REQ_WC_MAPPING);
     }},
    {"map_handle_0", EINVAL,
     [](stage& s) {
       void* va = nullptr;
       return gdr_map(s.g, gdr_mh_t{0}, &va, 65536);
     }},
    {"unmap_not_mapped", EINVAL, [](stage& s) { return gdr_unmap(s.g, s.aligned, s.va, 65536); }},
    {"unmap_wrong_address", EINVAL, [](stage& s) { return gdr_unmap(s.g, s.live, s.va + 4096, 65536); }},
    {"unmap_wrong_size", EINVAL, [](stage& s) { return gdr_unmap(s.g, s.live, s.va, 4096); }},
    {"unmap_size_wraps", EINVAL, [](stage& s) { return gdr_unmap(s.g, s.live, s.va, ~std::size_t{0}); }},
    {"unmap_null", EINVAL, [](stage& s) { return gdr_unmap(s.g, s.live, nullptr, 65536); }},
    {"unpin_twice", EINVAL,
     [](stage& s) {
       gdr_mh_t handle{};
       if (gdr_pin_buffer(s.g, s.device, 65536, 0, 0, &handle) != 0) return -1;
       if (gdr_unpin_buffer(s.g, handle) != 0) return -1;
       return gdr_unpin_buffer(s.g, handle);
     }},
    {"unpin_while_mapped_is_tolerated", 0,
     [](stage& s) {
       gdr_mh_t handle{};
       void* va = nullptr;
       if (gdr_pin_buffer(s.g, s.device, 65536, 0, 0, &handle) != 0 || gdr_map(s.g, handle, &va, 65536) != 0) return -1;
       return gdr_unpin_buffer(s.g, handle);
     }},
    {"copy_not_mapped", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.aligned, s.va, "x", 1); }},
    {"copy_from_not_mapped", EINVAL,
     [](stage& s) {
       char byte = 0;
       return gdr_copy_from_mapping(s.aligned, &byte, s.va, 1);
     }},
    {"copy_size_0", 0, [](stage& s) { return gdr_copy_to_mapping(s.live, s.va, "x", 0); }},
    {"copy_size_0_with_null_pointers", 0, [](stage& s) { return gdr_copy_to_mapping(s.live, nullptr, nullptr, 0); }},
    {"copy_from_size_0_with_null_pointers", 0, [](stage& s) { return gdr_copy_from_mapping(s.live, nullptr, nullptr, 0); }},
    {"copy_size_0_not_mapped", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.aligned, s.va, "x", 0); }},
    {"copy_null_host", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.live, s.va, nullptr, 8); }},
    {"copy_from_null_host", EINVAL, [](stage& s) { return gdr_copy_from_mapping(s.live, nullptr, s.va, 8); }},
    {"copy_past_the_end", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.live, s.va + 65535, "xy", 2); }},
    {"copy_before_the_start", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.live, s.va - 1, "xy", 2); }},
    {"copy_size_wraps", EINVAL, [](stage& s) { return gdr_copy_to_mapping(s.live, s.va + 8, "x", ~std::size_t{0} - 4); }},
    {"copy_swapped_arguments", EINVAL,  // as libfabric's stored copy does
     [](stage& s) {
       char host[8] = {};
       return gdr_copy_from_mapping(s.live, s.va, host, sizeof host);
     }},
    {"flush_of_garbage", EINVAL, [](stage&) { return gdr_flush_mapping(gdr_mh_t{0x4242}); }},
    {"attribute_unknown_sets_0", EINVAL,
     [](stage& s) {
       int value = 7;
       const int code = gdr_get_attribute(s.g, GDR_ATTR_MAX, &value);
       return value == 0 ? code : -1;
     }},
    {"attribute_0", EINVAL,
     [](stage& s) {
       int value = 7;
       return gdr_get_attribute(s.g, static_cast<gdr_attr_t>(0), &value);
     }},
    {"attribute_null_output", EINVAL,
     [](stage& s) { return gdr_get_attribute(s.g, GDR_ATTR_USE_PERSISTENT_MAPPING, nullptr); }},
    {"driver_version_of_null", EINVAL,
     [](stage&) {
       int major = 0, minor = 0;
       return gdr_driver_get_version(nullptr, &major, &minor);
     }},
    {"driver_version_null_outputs", 0, [](stage& s) { return gdr_driver_get_version(s.g, nullptr, nullptr); }},
    {"info_null_output", EINVAL, [](stage& s) { return gdr_get_info(s.g, s.live, nullptr); }},
    {"callback_flag_null_output", EINVAL, [](stage& s) { return gdr_get_callback_flag(s.g, s.live, nullptr); }},
    {"close_null", EINVAL, [](stage&) { return gdr_close(nullptr); }},
    {"close_garbage", EINVAL, [](stage&) { return gdr_close(reinterpret_cast<gdr_t>(0x1000)); }},
    {"type_string_outside", EINVAL,
     [](stage&) {
       const char* text = nullptr;
       return gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &text);
     }},
};

class errno_table : public testing::TestWithParam<row> {
 protected:
  void SetUp() override {
    simulated_cuda();
    context_ = std::make_unique<current_device>(0);
    memory_ = std::make_unique<device_buffer>(kBytes);
    s_.device = memory_->pointer();
    ASSERT_EQ(s_.device % GPU_PAGE_SIZE, 0u);
    s_.g = g_ = gdr_open();
    ASSERT_NE(g_, nullptr) << gdr_last_error();
    void* va = nullptr;
    ASSERT_EQ(gdr_pin_buffer(g_, s_.device, 65536, 0, 0, &s_.aligned), 0);
    ASSERT_EQ(gdr_pin_buffer(g_, s_.device, 65536, 0, 0, &s_.live), 0);
    ASSERT_EQ(gdr_map(g_, s_.live, &va, 65536), 0);
    s_.va = static_cast<char*>(va);
    std::memset(va, 0x33, 65536);
  }
  void TearDown() override {
    // Whatever was refused, the mapped pin is as it was.
    EXPECT_EQ(device_bytes(memory_->pointer(), 65536), std::vector<unsigned char>(65536, 0x33));
    EXPECT_EQ(gdr_unmap(g_, s_.live, s_.va, 65536), 0);
    EXPECT_EQ(gdr_close(g_), 0);
  }

  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> memory_;
  gdr_t g_ = nullptr;
  stage s_;
};

TEST_P(errno_table, AnswersAsTheOriginal) {
  constexpr int kUntouched = 12321;
  errno = kUntouched;
  const int code = GetParam().call(s_);
  const int errno_after = errno;
  EXPECT_EQ(code, GetParam().wanted) << gdr_last_error();
  EXPECT_EQ(errno_after, kUntouched) << "the variable errno was changed";
  if (code != 0) { EXPECT_GT(std::strlen(gdr_last_error()), 10u) << "a refusal needs its sentence"; }
}

INSTANTIATE_TEST_SUITE_P(rows, errno_table, testing::ValuesIn(kRows),
                         [](const auto& one) { return std::string(one.param.misuse); });

}  // namespace
}  // namespace pl::test
