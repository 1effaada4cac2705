// SPDX-License-Identifier: Apache-2.0
// The drop-in C interface call by call: outputs, sentences, handles that are none. The errno of each misuse is in
// test/abi/errno_table_test.cpp.
#include <cerrno>
#include <thread>

#include "test/capi/capi_fixture.hpp"

namespace pl::test {
namespace {

class gdrapi : public capi_test {
 protected:
  void SetUp() override {
    capi_test::SetUp();
    g_ = gdr_open();
    ASSERT_NE(g_, nullptr) << gdr_last_error();
  }
  void TearDown() override {
    if (g_ != nullptr) { EXPECT_EQ(gdr_close(g_), 0); }
    capi_test::TearDown();
  }
  gdr_mh_t pinned(std::uint64_t address, std::size_t size) {
    gdr_mh_t handle{};
    EXPECT_EQ(gdr_pin_buffer(g_, address, size, 0, 0, &handle), 0) << gdr_last_error();
    return handle;
  }
  gdr_t g_ = nullptr;
};

TEST_F(gdrapi, RuntimeVersionSkipsNullOutputs) {
  int major = 0, minor = 0;
  gdr_runtime_get_version(&major, nullptr);
  gdr_runtime_get_version(nullptr, &minor);
  gdr_runtime_get_version(nullptr, nullptr);
  EXPECT_EQ(major, 2);
  EXPECT_EQ(minor, 6);
}

TEST_F(gdrapi, AttributesWithoutAModule) {
  int value = -1;
  EXPECT_EQ(gdr_get_attribute(g_, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), 0);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(gdr_get_attribute(g_, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &value), 0);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(gdr_get_attribute(g_, GDR_ATTR_USING_DMA_BUF_MMAP, &value), 0);
  EXPECT_EQ(value, 0) << "the isolation rules hold (test/e2e), so the weaker promise is not needed";
}

TEST_F(gdrapi, MappingTypeStrings) {
  const char* const wanted[] = {"None", "Write Combining", "Caching", "Device"};
  for (int type = 0; type < 4; ++type) {
    const char* text = nullptr;
    EXPECT_EQ(gdr_get_mapping_type_string(static_cast<gdr_mapping_type_t>(type), &text), 0);
    EXPECT_STREQ(text, wanted[type]);
  }
  const char* text = "as before";
  EXPECT_EQ(gdr_get_mapping_type_string(static_cast<gdr_mapping_type_t>(7), &text), EINVAL);
  EXPECT_EQ(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_NONE, nullptr), EINVAL);
  EXPECT_STREQ(text, "as before");
}

TEST_F(gdrapi, InfoFollowsTheLifeOfAMapping) {
  const gdr_mh_t handle = pinned(device_ + 65536 + 10, 70'000);
  gdr_info_t info;
  ASSERT_EQ(gdr_get_info(g_, handle, &info), 0);
  EXPECT_EQ(info.va, device_ + 65536);
  EXPECT_EQ(info.mapped_size, 2u * 65536);
  EXPECT_EQ(info.page_size, 65536u);
  EXPECT_GT(info.cycles_per_ms, 1000u);
  EXPECT_GT(info.tm_cycles, 0u);
  EXPECT_EQ(info.mapped, 0u);
  EXPECT_EQ(gdr_unpin_buffer(g_, handle), 0);

  const gdr_mh_t aligned = pinned(device_, 3 * 65536);
  void* va = nullptr;
  ASSERT_EQ(gdr_map(g_, aligned, &va, 100), 0) << "a part of the pin, rounded up to the host page";
  ASSERT_EQ(gdr_get_info(g_, aligned, &info), 0);
  EXPECT_EQ(info.mapped, 1u);
  EXPECT_EQ(info.wc_mapping, 1u);
  EXPECT_EQ(info.mapping_type, GDR_MAPPING_TYPE_WC);
  EXPECT_EQ(info.mapped_size, 3u * 65536) << "the pinned size, mapped or not";
  EXPECT_EQ(gdr_copy_to_mapping(aligned, static_cast<char*>(va) + 4090, "123456", 6), 0);
  EXPECT_EQ(gdr_copy_to_mapping(aligned, static_cast<char*>(va) + 4090, "1234567", 7), EINVAL);
  EXPECT_EQ(gdr_unmap(g_, aligned, va, 4096), 0) << "the rounded size is as good as the given one";
  ASSERT_EQ(gdr_get_info(g_, aligned, &info), 0);
  EXPECT_EQ(info.mapped, 0u);
  EXPECT_EQ(info.wc_mapping, 0u);
  EXPECT_EQ(info.mapping_type, GDR_MAPPING_TYPE_NONE);
}

TEST_F(gdrapi, TwoPinsOfOneAddressAreTwoHandles) {
  const gdr_mh_t first = pinned(device_, 65536), second = pinned(device_, 65536);
  EXPECT_NE(first.h, second.h);
  void *va1 = nullptr, *va2 = nullptr;
  ASSERT_EQ(gdr_map(g_, first, &va1, 65536), 0);
  ASSERT_EQ(gdr_map(g_, second, &va2, 65536), 0);
  EXPECT_EQ(gdr_copy_to_mapping(first, va1, "shared", 6), 0);
  EXPECT_EQ(std::memcmp(va2, "shared", 6), 0);
  EXPECT_EQ(gdr_copy_to_mapping(first, va2, "x", 1), va1 == va2 ? 0 : EINVAL)
      << "each handle copies through its own mapping";
  EXPECT_EQ(gdr_unpin_buffer(g_, first), 0);
  EXPECT_EQ(gdr_copy_to_mapping(second, va2, "stays", 5), 0);
}

TEST_F(gdrapi, UnfencedWritesAndAFlush) {
  const gdr_mh_t handle = pinned(device_, 65536);
  void* va = nullptr;
  EXPECT_EQ(gdr_copy_to_mapping_unfenced(handle, va, "x", 1), EINVAL) << "not mapped";
  ASSERT_EQ(gdr_map(g_, handle, &va, 65536), 0);
  const auto bytes = random_bytes(65536, 1);
  for (std::size_t offset = 0; offset < bytes.size(); offset += 64)
    ASSERT_EQ(gdr_copy_to_mapping_unfenced(handle, static_cast<char*>(va) + offset, bytes.data() + offset, 64), 0);
  EXPECT_EQ(gdr_flush_mapping(handle), 0);
  EXPECT_EQ(device_bytes(device_, 65536), bytes);
}

TEST_F(gdrapi, EverySentenceIsAboutItsOwnTrouble) {
  gdr_mh_t handle{};
  void* va = nullptr;
  EXPECT_EQ(gdr_pin_buffer(g_, device_, 0, 0, 0, &handle), EINVAL);
  expect_message("size is 0");
  EXPECT_EQ(gdr_pin_buffer(g_, device_, 1, 0, 0, nullptr), EINVAL);
  expect_message("output pointer is null");
  int word = 0;
  EXPECT_EQ(gdr_pin_buffer(g_, reinterpret_cast<unsigned long>(&word), 4, 0, 0, &handle), EINVAL);
  expect_message("plain host memory");
  EXPECT_EQ(gdr_pin_buffer(nullptr, device_, 1, 0, 0, &handle), EINVAL);
  expect_message("gdr_t is not open");
  const gdr_mh_t live = pinned(device_, 65536), odd = pinned(device_ + 8, 8);
  EXPECT_EQ(gdr_map(g_, odd, &va, 8), EINVAL);
  expect_message("64 KiB boundary");
  EXPECT_EQ(gdr_map(g_, live, &va, 65537), EINVAL);
  expect_message("the 65536 bytes that are pinned");
  EXPECT_EQ(gdr_map_v2(g_, live, &va, 65536, 9), EINVAL);
  expect_message("map flags");
  EXPECT_EQ(gdr_map_v2(g_, live, &va, 65536, 2), EOPNOTSUPP);
  expect_message("write-combined");
  EXPECT_EQ(gdr_unmap(g_, live, va, 65536), EINVAL);
  expect_message("not mapped");
  ASSERT_EQ(gdr_map(g_, live, &va, 65536), 0);
  EXPECT_EQ(gdr_map(g_, live, &va, 65536), EAGAIN);
  expect_message("mapped already");
  EXPECT_EQ(gdr_unmap(g_, live, nullptr, 65536), EINVAL);
  expect_message("nothing was unmapped");
  EXPECT_EQ(gdr_copy_to_mapping(live, static_cast<char*>(va) + 65536, "x", 1), EINVAL);
  expect_message("leaves the mapping");
  EXPECT_EQ(gdr_copy_to_mapping(live, va, nullptr, 1), EINVAL);
  expect_message("host pointer is null");
  EXPECT_EQ(gdr_unpin_buffer(g_, gdr_mh_t{0}), EINVAL);
  expect_message("not a live pin");
  gdr_t other = gdr_open();
  EXPECT_EQ(gdr_unpin_buffer(other, live), EINVAL);
  expect_message("another session");
  EXPECT_EQ(gdr_map(other, live, &va, 65536), EINVAL);
  expect_message("another gdr_t");
  EXPECT_EQ(gdr_close(other), 0);
  EXPECT_EQ(gdr_close(other), EINVAL);
  expect_message("not open");
}

TEST_F(gdrapi, LastErrorBelongsToTheThread) {
  EXPECT_EQ(gdr_close(nullptr), EINVAL);
  const std::string mine = gdr_last_error();
  std::thread([&] {
    EXPECT_STREQ(gdr_last_error(), "no call of this thread has failed");
    gdr_mh_t handle{};
    EXPECT_EQ(gdr_pin_buffer(g_, device_, 0, 0, 0, &handle), EINVAL);
    EXPECT_NE(mine, gdr_last_error());
  }).join();
  EXPECT_EQ(mine, gdr_last_error()) << "another thread's failure showed here";
  int value = 0;
  EXPECT_EQ(gdr_get_attribute(g_, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), 0);
  EXPECT_EQ(mine, gdr_last_error()) << "valid until the next failing call";
}

TEST_F(gdrapi, CloseReleasesWhatIsLeft) {
  std::vector<gdr_mh_t> handles;
  void* va = nullptr;
  for (int i = 0; i < 50; ++i) {
    handles.push_back(pinned(device_, 65536));
    ASSERT_EQ(gdr_map(g_, handles.back(), &va, 65536), 0);
  }
  EXPECT_GT(mapping_count("peerlane-sim"), mapped_);
  EXPECT_EQ(gdr_close(g_), 0);
  for (const auto handle : handles) EXPECT_EQ(gdr_copy_to_mapping(handle, va, "x", 1), EINVAL);
  g_ = nullptr;  // TearDown checks that nothing is mapped any more
}

}  // namespace
}  // namespace pl::test
