// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "test/sim/sim_test.hpp"

namespace pl::cu {
namespace {

class Memory : public SimTest {};

TEST_F(Memory, CopiesRoundTrip) {
  for (const std::size_t bytes : {1ul, 4ul, 511ul, 4097ul, 3ul << 20}) {
    const device_ptr pointer = allocate(bytes);
    const auto sent = pattern(bytes, 3);
    std::vector<unsigned char> got(bytes);
    CU_OK(cuMemcpyHtoD_v2(pointer, sent.data(), bytes));
    CU_OK(cuMemcpyDtoH_v2(got.data(), pointer, bytes));
    EXPECT_EQ(sent, got);
    CU_OK(cuMemFree_v2(pointer));
  }
}

TEST_F(Memory, MemsetsAndDeviceCopies) {
  const device_ptr a = allocate(4096);
  const device_ptr b = allocate(4096);
  CU_OK(cuMemsetD32_v2(a, 0x11223344, 1024));
  CU_OK(cuMemsetD8_v2(a + 4, 0xaa, 3));
  CU_OK(cuMemcpyDtoD_v2(b, a, 4096));
  std::uint32_t words[4];
  CU_OK(cuMemcpyDtoH_v2(words, b, sizeof words));
  EXPECT_EQ(words[0], 0x11223344u);
  EXPECT_EQ(words[1], 0x11aaaaaau);
  EXPECT_EQ(words[2], 0x11223344u);
  CU_FAILS(invalid_value, cuMemsetD32_v2(a + 2, 0, 1));
}

TEST_F(Memory, SmallAllocationsShareABlockInStepsOf512) {
  const device_ptr a = allocate(1);
  const device_ptr b = allocate(513);
  const device_ptr c = allocate(8);
  EXPECT_EQ(a % 512, 0u);
  EXPECT_EQ(b - a, 512u);
  EXPECT_EQ(c - b, 1024u);
  const device_ptr large = allocate((1u << 20) + 1);
  EXPECT_EQ(large % (2u << 20), 0u);
  device_ptr base = 0;
  std::size_t bytes = 0;
  CU_OK(cuMemGetAddressRange_v2(&base, &bytes, b + 100));
  EXPECT_EQ(base, b);
  EXPECT_EQ(bytes, 513u);
  CU_FAILS(not_found, cuMemGetAddressRange_v2(&base, &bytes, b + 513));
}

TEST_F(Memory, BadCallsAreRefused) {
  device_ptr pointer = 7;
  CU_FAILS(invalid_value, cuMemAlloc_v2(&pointer, 0));
  EXPECT_EQ(pointer, 7u) << "outputs are set on success only";
  CU_FAILS(invalid_value, cuMemFree_v2(0x1234));
  const device_ptr good = allocate(1000);
  CU_FAILS(invalid_value, cuMemFree_v2(good + 8));
  unsigned char byte = 0;
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(&byte, good + 1000, 1));
  CU_FAILS(invalid_value, cuMemcpyHtoD_v2(good + 999, pattern(2, 0).data(), 2));
  CU_OK(cuMemFree_v2(good));
  CU_FAILS(invalid_value, cuMemFree_v2(good));
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(&byte, good, 1));
}

TEST_F(Memory, OutOfMemoryIsTheSumAndComesBack) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  CU_OK(cuMemGetInfo_v2(&free_bytes, &total));
  device_ptr pointer = 0;
  CU_FAILS(out_of_memory, cuMemAlloc_v2(&pointer, total + 1));
  const device_ptr half = allocate(total / 2);
  CU_FAILS(out_of_memory, cuMemAlloc_v2(&pointer, total / 2 + (4u << 20)));
  std::size_t now = 0;
  CU_OK(cuMemGetInfo_v2(&now, &total));
  EXPECT_EQ(now, free_bytes - total / 2);
  CU_OK(cuMemFree_v2(half));
  CU_OK(cuMemGetInfo_v2(&now, &total));
  EXPECT_EQ(now, free_bytes);
}

TEST_F(Memory, FreedAddressesComeBackWithANewBufferId) {
  std::set<unsigned long long> seen;
  device_ptr first = 0;
  for (const std::size_t bytes : {100ul, 4ul << 20}) {
    for (int i = 0; i < 5; ++i) {
      const device_ptr pointer = allocate(bytes);
      if (i == 0) first = pointer;
      EXPECT_EQ(pointer, first) << "addresses are reused eagerly";
      const auto id = attribute<unsigned long long>(pointer_attribute::buffer_id, pointer);
      EXPECT_NE(id, 0u);
      EXPECT_TRUE(seen.insert(id).second);
      CU_OK(cuMemFree_v2(pointer));
    }
  }
}

TEST_F(Memory, NewMemoryNeverShowsBytesThatAnOldMappingSees) {
  for (const std::size_t bytes : {4096ul, 2ul << 20}) {
    const device_ptr pointer = allocate(bytes);
    exported_range old(pointer / 4096 * 4096, 4096, range_flag::sim_offset_in_position);
    ASSERT_NE(old.data, nullptr);
    CU_OK(cuMemsetD8_v2(pointer, 0x5a, bytes));
    CU_OK(cuMemFree_v2(pointer));
    EXPECT_EQ(old.data[0], 0x5a) << "the memory outlives the free while it is mapped";
    const device_ptr again = allocate(bytes);
    ASSERT_EQ(again, pointer);
    old.data[0] = 0x77;
    unsigned char byte = 1;
    CU_OK(cuMemcpyDtoH_v2(&byte, again, 1));
    EXPECT_EQ(byte, 0);
    CU_OK(cuMemFree_v2(again));
  }
}

// A program that takes device pointers for host pointers must fall over.
TEST_F(Memory, DevicePointersFaultOnTheHost) {
  const device_ptr pointer = allocate(4096);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, [](int) { _exit(42); });
    const char byte = *reinterpret_cast<volatile char*>(pointer);
    _exit(byte == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST_F(Memory, ThreadsAllocateAndFreeTogether) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      ASSERT_EQ(cuCtxSetCurrent(context_), error_code::success);
      for (unsigned i = 0; i < 50; ++i) {
        const std::size_t bytes = 64 + 700 * ((i + t) % 5) + ((i % 9 == 0) ? (2u << 20) : 0);
        device_ptr pointer = 0;
        ASSERT_EQ(cuMemAlloc_v2(&pointer, bytes), error_code::success);
        const auto sent = pattern(64, t * 31 + i);
        std::vector<unsigned char> got(64);
        ASSERT_EQ(cuMemcpyHtoD_v2(pointer, sent.data(), 64), error_code::success);
        ASSERT_EQ(cuMemcpyDtoH_v2(got.data(), pointer, 64), error_code::success);
        ASSERT_EQ(sent, got);
        ASSERT_EQ(cuMemFree_v2(pointer), error_code::success);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(Memory, HostMemoryIsOneAddressForBothSides) {
  void* pinned = nullptr;
  CU_OK(cuMemHostAlloc(&pinned, 5000, host_alloc_flag::portable));
  device_ptr seen = 0;
  CU_OK(cuMemHostGetDevicePointer_v2(&seen, pinned, 0));
  EXPECT_EQ(seen, reinterpret_cast<device_ptr>(pinned));
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::memory_type, seen), static_cast<unsigned>(memory_type::host));
  CU_FAILS(host_memory_already_registered, cuMemHostRegister_v2(pinned, 64, 0));
  CU_OK(cuMemFreeHost(pinned));
  CU_FAILS(invalid_value, cuMemFreeHost(pinned));

  std::vector<unsigned char> own(8192);
  CU_FAILS(host_memory_not_registered, cuMemHostUnregister(own.data()));
  CU_OK(cuMemHostRegister_v2(own.data(), own.size(), 0));
  CU_FAILS(host_memory_already_registered, cuMemHostRegister_v2(own.data() + 100, 10, 0));
  CU_OK(cuMemHostUnregister(own.data()));

  device_ptr managed = 0;
  CU_OK(cuMemAllocManaged(&managed, 64, 1));
  *reinterpret_cast<volatile unsigned*>(managed) = 99;
  unsigned word = 0;
  CU_OK(cuMemcpyDtoH_v2(&word, managed, 4));
  EXPECT_EQ(word, 99u);
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::is_managed, managed), 1u);
  CU_OK(cuMemFree_v2(managed));
}

TEST_F(Memory, PointerAttributes) {
  const device_ptr pointer = allocate(3000);
  EXPECT_EQ(attribute<context_t>(pointer_attribute::context, pointer + 5), context_);
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::memory_type, pointer), static_cast<unsigned>(memory_type::device));
  EXPECT_EQ(attribute<device_ptr>(pointer_attribute::device_pointer, pointer + 5), pointer + 5);
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::is_managed, pointer), 0u);
  EXPECT_EQ(attribute<int>(pointer_attribute::device_ordinal, pointer), 0);
  EXPECT_EQ(attribute<device_ptr>(pointer_attribute::range_start, pointer + 5), pointer);
  EXPECT_EQ(attribute<std::size_t>(pointer_attribute::range_size, pointer + 5), 3000u);
  EXPECT_TRUE(attribute<int>(pointer_attribute::mapped, pointer));
  EXPECT_TRUE(attribute<int>(pointer_attribute::is_gpu_direct_rdma_capable, pointer));
  void* host = nullptr;
  CU_FAILS(invalid_value, cuPointerGetAttribute(&host, pointer_attribute::host_pointer, pointer));
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::sync_memops, pointer), 0u);
  const unsigned enabled = 1;
  CU_OK(cuPointerSetAttribute(&enabled, pointer_attribute::sync_memops, pointer));
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::sync_memops, pointer), 1u);

  unsigned type = 77;
  CU_FAILS(invalid_value, cuPointerGetAttribute(&type, pointer_attribute::memory_type, reinterpret_cast<device_ptr>(&type)));
  int names[] = {pointer_attribute::memory_type, pointer_attribute::buffer_id};
  unsigned long long id = 5;
  void* values[] = {&type, &id};
  CU_OK(cuPointerGetAttributes(2, names, values, reinterpret_cast<device_ptr>(&type)));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(id, 0u);
  CU_OK(cuPointerGetAttributes(2, names, values, pointer));
  EXPECT_EQ(type, static_cast<unsigned>(memory_type::device));
  EXPECT_NE(id, 0u);
}

TEST_F(Memory, InjectedFailuresHitTheNthCallOnce) {
  peerlaneSimFail("cuMemAlloc_v2", 2, error_code::out_of_memory);
  device_ptr a = 0;
  device_ptr b = 0;
  CU_OK(cuMemAlloc_v2(&a, 8));
  CU_FAILS(out_of_memory, cuMemAlloc_v2(&b, 8));
  CU_OK(cuMemAlloc_v2(&b, 8));
}

}  // namespace
}  // namespace pl::cu
