// SPDX-License-Identifier: Apache-2.0
// Missing pieces, each with its own sentence, through the C interfaces: no driver, no permission, unknown driver versions
// and what proves their mappings, BAR1 full, MIG, modules that are too old or too new. Method: fake kernels (test/support)
// behind the library's own system calls, over the simulated GPU's CUDA. What needs a process without libcuda is in
// probe_test.cpp.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "test/capi/capi_fixture.hpp"
#include "test/support/fake_gdrdrv.hpp"
#include "test/support/fake_rm.hpp"

namespace pl::test {
namespace {

class missing_pieces : public capi_test {
 protected:
  void TearDown() override {
    capi_test::TearDown();
    EXPECT_EQ(kernel_.live_clients(), 0);
    EXPECT_EQ(kernel_.live_mappings(), 0);
    EXPECT_EQ(kernel_.protocol_errors(), 0);
  }
  // A session of the rm backend on the fake resource manager, null if it refuses.
  gdr_t open_rm() {
    set_default_device_io_for_tests(&kernel_);
    const scoped_variable backend("PEERLANE_BACKEND", "rm");
    return gdr_open();
  }
  // Pins and maps one granule; the errno of the step that failed. All is released.
  int try_to_map(gdr_t g, std::uint64_t address) {
    gdr_mh_t handle{};
    void* va = nullptr;
    if (const int code = gdr_pin_buffer(g, address, 65536, 0, 0, &handle)) return code;
    const int code = gdr_map(g, handle, &va, 65536);
    if (code == 0) {
      EXPECT_EQ(gdr_copy_to_mapping(handle, va, "right", 5), 0);
      EXPECT_EQ(std::memcmp(device_bytes(address, 5).data(), "right", 5), 0) << "wrong memory was handed out";
    }
    EXPECT_EQ(gdr_unpin_buffer(g, handle), 0);
    return code;
  }
  fake_rm kernel_;
};

TEST_F(missing_pieces, NoDriver) {
  kernel_.settings().no_driver = true;
  EXPECT_EQ(open_rm(), nullptr);
  expect_message("no NVIDIA kernel driver answers");
  expect_message("/dev/nvidiactl");
  expect_message("peerlane doctor");
}

TEST_F(missing_pieces, NoPermissionOnTheControlNode) {
  kernel_.settings().deny_control_node = true;
  EXPECT_EQ(open_rm(), nullptr);
  expect_message("/dev/nvidiactl cannot be opened");
  expect_message("no permission");
  expect_message("chmod 666");
  peerlane_session_t s = nullptr;
  EXPECT_EQ(open_session_on("rm", &s), EACCES);
}

TEST_F(missing_pieces, NoPermissionOnTheGpusNode) {
  kernel_.settings().deny_device_nodes = true;
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr) << gdr_last_error();
  EXPECT_EQ(try_to_map(g, device_), EACCES);
  expect_message("/dev/nvidia1 cannot be opened");  // CUDA's device 0 is the fake's minor 1
  expect_message("device node must be in the container");
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(missing_pieces, ANodeThatIsNotInTheContainer) {
  kernel_.settings().gpus = 1;  // CUDA shows two devices, the RM knows one
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr);
  EXPECT_EQ(try_to_map(g, device_), 0);
  const current_device other(1);
  const device_buffer second(4 << 20);
  EXPECT_EQ(try_to_map(g, second.pointer()), ENODEV);
  expect_message("knows no GPU at PCI 0000:fe:01");
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(missing_pieces, EachMappingHasItsOwnAddressAndEndsWithItself) {
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr);
  gdr_mh_t handles[2] = {};
  void* va[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(gdr_pin_buffer(g, device_, 65536, 0, 0, &handles[i]), 0);
    ASSERT_EQ(gdr_map(g, handles[i], &va[i], 65536), 0);
  }
  EXPECT_NE(va[0], va[1]) << "clients keep tables by address";
  EXPECT_EQ(gdr_unmap(g, handles[0], va[0], 65536), 0);
  unsigned char page = 0;
  EXPECT_NE(mincore(va[0], 4096, &page), 0) << "the pointer outlived its unmapping";
  EXPECT_EQ(gdr_copy_to_mapping(handles[1], va[1], "still", 5), 0);
  EXPECT_EQ(std::memcmp(device_bytes(device_, 5).data(), "still", 5), 0);
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(missing_pieces, Bar1IsFull) {
  kernel_.settings().bar1_full = true;
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr);
  EXPECT_EQ(try_to_map(g, device_), ENOMEM);
  expect_message("BAR1");
  expect_message("release mappings");
  kernel_.settings().bar1_full = false;
  EXPECT_EQ(try_to_map(g, device_), 0) << "room again: the same session works";
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(missing_pieces, AnUnknownDriverVersionIsRefused) {
  kernel_.settings().version = "777.1.02";
  EXPECT_EQ(open_rm(), nullptr);
  expect_message("777.1.02");
  expect_message("PEERLANE_RM_FORCE=1");
  peerlane_session_t s = nullptr;
  EXPECT_EQ(open_session_on("rm", &s), ENOTSUP);
}

TEST_F(missing_pieces, AForcedVersionIsProvedAtEveryMapping) {
  const scoped_variable force("PEERLANE_RM_FORCE", "1");
  kernel_.settings().version = "777.1.02";
  set_device_bytes(device_, random_bytes(1 << 20, 5));
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr) << gdr_last_error();
  EXPECT_EQ(try_to_map(g, device_), 0) << gdr_last_error();
  kernel_.settings().shift_mapping = true;  // right once is not enough under force
  const auto before = device_bytes(device_, 1 << 20);
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(try_to_map(g, device_), EIO);
    expect_message("does not show the memory it should");
  }
  EXPECT_EQ(device_bytes(device_, 1 << 20), before) << "the proof left traces at the wrong place";
  kernel_.settings().shift_mapping = false;
  EXPECT_EQ(try_to_map(g, device_), 0);
  EXPECT_EQ(gdr_close(g), 0);
}

class known_by_reading : public missing_pieces, public testing::WithParamInterface<const char*> {};

TEST_P(known_by_reading, ProvedUntilOneMappingWasRight) {
  kernel_.settings().version = GetParam();
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr) << gdr_last_error();
  // A pin that is never mapped proves nothing.
  gdr_mh_t unused{};
  ASSERT_EQ(gdr_pin_buffer(g, device_, 65536, 0, 0, &unused), 0);
  EXPECT_EQ(gdr_unpin_buffer(g, unused), 0);
  kernel_.settings().shift_mapping = true;
  EXPECT_EQ(try_to_map(g, device_), EIO);
  EXPECT_EQ(try_to_map(g, device_), EIO) << "a failed proof must not be taken for a passed one";
  kernel_.settings().shift_mapping = false;
  EXPECT_EQ(try_to_map(g, device_), 0);
  // From now on unproved: a mapping made wrong goes through, which shows that no nonce is written any more.
  kernel_.settings().shift_mapping = true;
  gdr_mh_t handle{};
  void* va = nullptr;
  ASSERT_EQ(gdr_pin_buffer(g, device_, 65536, 0, 0, &handle), 0);
  EXPECT_EQ(gdr_map(g, handle, &va, 65536), 0);
  kernel_.settings().shift_mapping = false;
  EXPECT_EQ(gdr_close(g), 0);
}

INSTANTIATE_TEST_SUITE_P(versions, known_by_reading, testing::Values("535.104.05", "570.86.10", "595.1"),
                         [](const auto& one) { return std::string(one.param, 3); });

TEST_F(missing_pieces, TheProofTouchesNoNeighbour) {
  kernel_.settings().version = "570.86.10";
  // Three small allocations of one 2 MiB block; the middle one goes, then the last is proved: the granule's first bytes
  // belong to the first.
  device_buffer first(512), middle(512), last(512);
  ASSERT_EQ(first.pointer() / 65536, last.pointer() / 65536);
  const auto kept = random_bytes(512, 6), own = random_bytes(512, 7);
  set_device_bytes(first.pointer(), kept);
  set_device_bytes(last.pointer(), own);
  middle.free_now();
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr);
  gdr_mh_t handle{};
  void* va = nullptr;
  ASSERT_EQ(gdr_pin_buffer(g, last.pointer() & ~0xffffull, 65536, 0, 0, &handle), 0) << gdr_last_error();
  EXPECT_EQ(gdr_map(g, handle, &va, 65536), 0) << gdr_last_error();
  EXPECT_EQ(gdr_unpin_buffer(g, handle), 0);
  EXPECT_EQ(gdr_close(g), 0);
  peerlane_session_t s = nullptr;
  peerlane_mapping_t m = nullptr;
  const scoped_variable always("PEERLANE_RM_VERIFY", "1");
  ASSERT_EQ(open_session_on("rm", &s), 0);
  first.free_now();  // now the first byte of the granule is nobody's: CUDA would refuse to copy it
  EXPECT_EQ(peerlane_map(s, last.pointer() + 3, 5, 0, &m), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_session_close(s), 0);
  EXPECT_EQ(device_bytes(last.pointer(), 512), own);
}

// CUDA as it looks inside a MIG instance: the same table, another name.
int mig_name(char* name, int capacity, cu::device_t) {
  std::snprintf(name, static_cast<std::size_t>(capacity), "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
  return 0;
}

TEST_F(missing_pieces, MigInstances) {
  cu::driver_table mig = simulated_cuda();
  mig.cuDeviceGetName = mig_name;
  cu::set_driver_for_tests(&mig);
  gdr_t g = open_rm();
  ASSERT_NE(g, nullptr);
  EXPECT_EQ(try_to_map(g, device_), ENOTSUP);
  expect_message("MIG instances are not supported by the rm backend");
  EXPECT_EQ(gdr_close(g), 0);
  cu::set_driver_for_tests(nullptr);
}

TEST_F(missing_pieces, TheDmabufBackendWantsANewDriver) {
  cu::driver_table old = simulated_cuda();
  old.driver_version = 13000;
  cu::set_driver_for_tests(&old);
  peerlane_session_t s = nullptr;
  EXPECT_EQ(open_session_on("dmabuf", &s), ENOTSUP);
  expect_message("the driver offers CUDA 13.0; mapping a dma-buf needs 13.3 or newer");
  cu::set_driver_for_tests(nullptr);
}

TEST_F(missing_pieces, GdrdrvTooOldOrTooNew) {
  peerlane_session_t s = nullptr;
  fake_gdrdrv old(1, 4);
  set_default_device_io_for_tests(&old);
  EXPECT_EQ(open_session_on("gdrdrv", &s), ENOTSUP);
  expect_message("gdrdrv 1.4 is too old: 2.0 or newer");
  gdr_t g = gdr_open();  // auto falls through to the next backend
  ASSERT_NE(g, nullptr) << gdr_last_error();
  EXPECT_EQ(try_to_map(g, device_), 0);
  EXPECT_EQ(gdr_close(g), 0);
  fake_gdrdrv newer(3, 0);
  newer.set_minimum_api(0x20007);
  set_default_device_io_for_tests(&newer);
  EXPECT_EQ(open_session_on("gdrdrv", &s), ENOTSUP);
  expect_message("requires a newer library");
}

TEST_F(missing_pieces, GdrdrvThroughTheCInterface) {
  const scoped_variable backend("PEERLANE_BACKEND", "gdrdrv");
  for (unsigned release : {0u, 4u, 6u}) {
    fake_gdrdrv module(2, release);
    set_default_device_io_for_tests(&module);
    gdr_t g = gdr_open();
    ASSERT_NE(g, nullptr) << gdr_last_error();
    int major = 0, minor = -1, persistent = -1;
    EXPECT_EQ(gdr_driver_get_version(g, &major, &minor), 0);
    EXPECT_EQ(major * 100 + minor, 200 + static_cast<int>(release));
    EXPECT_EQ(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &persistent), 0);
    EXPECT_EQ(persistent, release >= 5 ? 1 : 0);
    gdr_mh_t handle{};
    EXPECT_EQ(gdr_pin_buffer_v2(g, device_, 65536, GDR_PIN_FLAG_FORCE_PCIE, &handle), EINVAL);
    expect_message("attribute 2 is 0");
    EXPECT_EQ(try_to_map(g, device_), 0) << gdr_last_error();
    EXPECT_EQ(gdr_close(g), 0);
    EXPECT_EQ(module.live_pins(), 0);
  }
}

// The stock module passes on the kernel's own number, ours tells user space's.
TEST_F(missing_pieces, GdrdrvOnAGpuThatIsNotShared) {
  constexpr int kKernelEnotsupp = 524;
  for (const int answer : {kKernelEnotsupp, EOPNOTSUPP}) {
    fake_gdrdrv module;
    set_default_device_io_for_tests(&module);
    peerlane_session_t s = nullptr;
    ASSERT_EQ(open_session_on("gdrdrv", &s), 0) << peerlane_last_error();
    module.refuse_pins(answer);
    peerlane_mapping_t m = nullptr;
    EXPECT_EQ(peerlane_map(s, device_, 65536, 0, &m), ENOTSUP) << answer;
    expect_message("refuses to share this GPU's memory with modules (MIG, vGPU");
    EXPECT_EQ(peerlane_map(s, device_, 65536, PEERLANE_MAP_FORCE_PCIE, &m), ENOTSUP) << answer;
    expect_message("cannot force a mapping through BAR1 here");
    EXPECT_EQ(peerlane_session_close(s), 0);
  }
}

TEST_F(missing_pieces, AutoJoinsAllReasons) {
  kernel_.settings().no_driver = true;
  set_default_device_io_for_tests(&kernel_);
  cu::driver_table old = simulated_cuda();
  old.driver_version = 12080;
  cu::set_driver_for_tests(&old);
  EXPECT_EQ(gdr_open(), nullptr);
  for (const char* words : {"gdrdrv: /dev/gdrdrv cannot be opened", "dmabuf: the driver offers CUDA 12.8",
                            "rm: no NVIDIA kernel driver answers", "peerlane doctor"})
    expect_message(words);
  cu::set_driver_for_tests(nullptr);
}

}  // namespace
}  // namespace pl::test
