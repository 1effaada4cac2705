// SPDX-License-Identifier: Apache-2.0
// The other process of process_test.cpp: a program that ctest does not run by itself. What a case needs comes in the
// environment (PL_TEST_*).
#include <dlfcn.h>

#include <cstdlib>

#include "test/sim/process.hpp"
#include "test/sim/sim_test.hpp"

namespace pl::cu {
namespace {

// A misspelt case must not look like a passed one.
const struct empty_run_fails {
  empty_run_fails() { testing::UnitTest::GetInstance(); }  // which is then destroyed after this object
  ~empty_run_fails() {
    if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) _exit(3);
  }
} g_empty_run_fails;

TEST(ProcessChild, ForkBeforeInit) {
  const int result = in_forked_child([] {
    int count = 0;
    if (cuDeviceGetCount(&count) != error_code::not_initialized) return 1;
    if (cuInit(0) != error_code::success) return 2;
    return cuDeviceGetCount(&count) == error_code::success && count == 2 ? 0 : 3;
  });
  EXPECT_EQ(result, 0);
}

TEST(ProcessChild, OpenIpcHandle) {
  ipc_mem_handle_t handle;
  from_hex(std::getenv("PL_TEST_HANDLE"), &handle, sizeof handle);
  CU_OK(cuInit(0));
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  device_ptr pointer = 0;
  device_ptr twice = 0;
  auto* const open =
      reinterpret_cast<result_t (*)(device_ptr*, ipc_mem_handle_t, unsigned)>(dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle_v2"));
  auto* const close_handle = reinterpret_cast<result_t (*)(device_ptr)>(dlsym(RTLD_DEFAULT, "cuIpcCloseMemHandle"));
  CU_OK(open(&pointer, handle, 1));
  CU_OK(open(&twice, handle, 1));
  EXPECT_EQ(pointer, twice);
  std::uint32_t words[2];
  CU_OK(cuMemcpyDtoH_v2(words, pointer, 8));
  EXPECT_EQ(words[0], 0xabcd1234u);
  CU_OK(cuMemsetD32_v2(pointer + 4, 0x600d600d, 1));
  EXPECT_EQ(attribute<std::size_t>(pointer_attribute::range_size, pointer), 1000u);
  CU_FAILS(invalid_value, cuMemFree_v2(pointer));
  CU_OK(close_handle(twice));
  CU_OK(cuMemcpyDtoH_v2(words, pointer, 8));
  CU_OK(close_handle(pointer));
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(words, pointer, 8));
  CU_FAILS(invalid_value, close_handle(pointer));
  handle.reserved[36] = static_cast<char>(handle.reserved[36] + 1);  // another inode: a stale handle
  CU_FAILS(invalid_value, open(&pointer, handle, 1));
  CU_OK(cuCtxDestroy_v2(context));
}

TEST(ProcessChild, NoMulticast) {
  CU_OK(cuInit(0));
  int has = 1;
  CU_OK(cuDeviceGetAttribute(&has, device_attribute::multicast_supported, 0));
  EXPECT_EQ(has, 0);
  const multicast_prop prop{2, 2u << 20, 0, 0};
  physical_t team = 0;
  CU_FAILS(not_supported, cuMulticastCreate(&team, &prop));
}

TEST(ProcessChild, ImportShareableHandle) {
  CU_OK(cuInit(0));
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  const auto fd = std::strtol(std::getenv("PL_TEST_FD"), nullptr, 10);
  physical_t memory = 0;
  CU_OK(cuMemImportFromShareableHandle(&memory, reinterpret_cast<void*>(fd), handle_type::posix_fd));
  device_ptr base = 0;
  CU_OK(cuMemAddressReserve(&base, 4u << 20, 0, 0, 0));
  CU_OK(cuMemMap(base, 4u << 20, 0, memory, 0));
  const access_desc access = {{location_type::device, 0}, access_flags::read_write};
  CU_OK(cuMemSetAccess(base, 4u << 20, &access, 1));
  std::uint32_t word = 0;
  CU_OK(cuMemcpyDtoH_v2(&word, base + (3u << 20), 4));
  EXPECT_EQ(word, 0x12121212u);
  EXPECT_EQ(attribute<int>(pointer_attribute::device_ordinal, base), 1) << "the exporter's device";
  CU_OK(cuMemUnmap(base, 4u << 20));
  CU_OK(cuMemRelease(memory));
  CU_OK(cuMemAddressFree(base, 4u << 20));
  CU_OK(cuCtxDestroy_v2(context));
}

constexpr std::size_t kFabricHandleBytes = 64;
constexpr allocation_prop kFabricMemory = {
    allocation_type::pinned, handle_type::fabric, {location_type::device, 1}, nullptr, {0, 0, 0, {}}};

TEST(ProcessChild, ExportFabricHandle) {
  CU_OK(cuInit(0));
  int has = 0;
  CU_OK(cuDeviceGetAttribute(&has, device_attribute::handle_type_fabric, 0));
  EXPECT_EQ(has, 1);
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  physical_t memory = 0;
  CU_OK(cuMemCreate(&memory, 4u << 20, &kFabricMemory, 0));
  unsigned char handle[kFabricHandleBytes] = {};
  CU_OK(cuMemExportToShareableHandle(handle, memory, handle_type::fabric, 0));
  EXPECT_EQ(run_child("ProcessChild.ImportFabricHandle", {"PL_TEST_HANDLE=" + to_hex(handle, sizeof handle)}), 0);
  handle[16] = static_cast<unsigned char>(handle[16] + 1);  // another inode: a stale handle
  CU_FAILS(invalid_value, cuMemImportFromShareableHandle(&memory, handle, handle_type::fabric));
  CU_OK(cuMemRelease(memory));
  CU_OK(cuCtxDestroy_v2(context));
}

TEST(ProcessChild, ImportFabricHandle) {
  unsigned char handle[kFabricHandleBytes];
  from_hex(std::getenv("PL_TEST_HANDLE"), handle, sizeof handle);
  CU_OK(cuInit(0));
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  physical_t memory = 0;
  CU_OK(cuMemImportFromShareableHandle(&memory, handle, handle_type::fabric));
  device_ptr base = 0;
  CU_OK(cuMemAddressReserve(&base, 4u << 20, 0, 0, 0));
  CU_OK(cuMemMap(base, 4u << 20, 0, memory, 0));
  const access_desc access = {{location_type::device, 0}, access_flags::read_write};
  CU_OK(cuMemSetAccess(base, 4u << 20, &access, 1));
  CU_OK(cuMemsetD32_v2(base, 0x600d600d, 1));
  CU_OK(cuMemUnmap(base, 4u << 20));
  CU_OK(cuMemRelease(memory));
  CU_OK(cuMemAddressFree(base, 4u << 20));
  CU_OK(cuCtxDestroy_v2(context));
}

TEST(ProcessChild, FabricWithoutTheService) {
  CU_OK(cuInit(0));
  int has = 0;
  CU_OK(cuDeviceGetAttribute(&has, device_attribute::handle_type_fabric, 0));
  EXPECT_EQ(has, 1);
  physical_t memory = 0;
  CU_FAILS(not_permitted, cuMemCreate(&memory, 4u << 20, &kFabricMemory, 0));
}

// What streams promise holds under every seed; what they do not promise (the order inside a copy) is seen to vary.
extern "C" result_t cuStreamWriteValue64(stream_t, device_ptr, std::uint64_t, unsigned);

TEST(ProcessChild, SendLate) {
  ipc_mem_handle_t handle;
  from_hex(std::getenv("PL_TEST_HANDLE"), &handle, sizeof handle);
  const auto flags = static_cast<unsigned>(std::atoi(std::getenv("PL_TEST_FLAGS")));
  const auto rounds = static_cast<std::uint64_t>(std::atoi(std::getenv("PL_TEST_ROUNDS")));
  CU_OK(cuInit(0));
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  stream_t sending = nullptr;
  CU_OK(cuStreamCreate(&sending, stream_flag::non_blocking));
  device_ptr destination = 0;
  CU_OK(cuIpcOpenMemHandle_v2(&destination, handle, 1));
  std::vector<std::uint64_t> numbers(rounds * 8);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i / 8 + 1;
  device_ptr source = 0;
  CU_OK(cuMemAlloc_v2(&source, numbers.size() * 8));
  CU_OK(cuMemcpyHtoD_v2(source, numbers.data(), numbers.size() * 8));
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    CU_OK(cuMemcpyDtoDAsync_v2(destination, source + 64 * (round - 1), 64, sending));
    CU_OK(cuStreamWriteValue64(sending, destination + 1024, round, flags));
    CU_OK(cuStreamWaitValue64_v2(sending, destination + 2048, round, wait_value::geq));
  }
  CU_OK(cuStreamSynchronize(sending));
  CU_OK(cuIpcCloseMemHandle(destination));
  CU_OK(cuCtxDestroy_v2(context));
}

TEST(ProcessChild, OrderUnderASeed) {
  CU_OK(cuInit(0));
  context_t context = nullptr;
  CU_OK(cuCtxCreate_v2(&context, 0, 0));
  constexpr std::size_t kBytes = 4u << 20;
  constexpr std::size_t kStep = 32u << 10;
  stream_t copying = nullptr;
  stream_t following = nullptr;
  event_t copied = nullptr;
  CU_OK(cuStreamCreate(&copying, stream_flag::non_blocking));
  CU_OK(cuStreamCreate(&following, stream_flag::non_blocking));
  CU_OK(cuEventCreate(&copied, 0));
  device_ptr source = 0;
  device_ptr destination = 0;
  CU_OK(cuMemAlloc_v2(&source, kBytes));
  CU_OK(cuMemAlloc_v2(&destination, kBytes + 4096));
  exported_range view(destination, kBytes + 4096, 0);
  ASSERT_NE(view.data, nullptr);
  auto* const bytes = view.data;
  bool was_disordered = false;
  for (unsigned char round = 1; round <= 3; ++round) {
    CU_OK(cuMemsetD8_v2(source, round, kBytes));
    CU_OK(cuMemcpyDtoDAsync_v2(destination, source, kBytes, copying));
    CU_OK(cuEventRecord(copied, copying));
    CU_OK(cuStreamWaitEvent(following, copied, 0));
    CU_OK(cuMemcpyDtoDAsync_v2(destination + kBytes, destination, 4, following));
    while (cuEventQuery(copied) == error_code::not_ready) {
      bool has_gap = false;
      for (std::size_t offset = 0; offset < kBytes; offset += kStep) {
        const bool is_new = *static_cast<volatile unsigned char*>(bytes + offset) == round;
        was_disordered |= is_new && has_gap;
        has_gap |= !is_new;
      }
    }
    CU_OK(cuStreamSynchronize(following));
    for (std::size_t offset = 0; offset < kBytes; offset += 997) ASSERT_EQ(bytes[offset], round);
    ASSERT_EQ(bytes[kBytes], round);
  }
  EXPECT_TRUE(was_disordered);
  CU_OK(cuCtxDestroy_v2(context));
}

TEST(ProcessChild, SecondDeviceOnly) {
  CU_OK(cuInit(0));
  int count = 0;
  CU_OK(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 1);
  char bus[32];
  CU_OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  EXPECT_STREQ(bus, "0000:fe:01.0");
  uuid_t uuid{};
  CU_OK(cuDeviceGetUuid_v2(&uuid, 0));
  EXPECT_EQ(to_hex(&uuid, sizeof uuid), std::getenv("PL_TEST_UUID"));
  std::size_t bytes = 0;
  CU_OK(cuDeviceTotalMem_v2(&bytes, 0));
  EXPECT_EQ(bytes, 64u << 20);
  int version = 0;
  CU_OK(cuDriverGetVersion(&version));
  EXPECT_EQ(version, 12040);
}

TEST(ProcessChild, NoDevice) { CU_FAILS(no_device, cuInit(0)); }

}  // namespace
}  // namespace pl::cu
