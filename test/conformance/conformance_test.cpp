// SPDX-License-Identifier: Apache-2.0
// What every backend must do, whatever it is made of. Method: bytes written on one side are read on the other through
// CUDA calls of the simulated GPU; each test ends with the fixture's check that nothing is left open or mapped.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "os/faulting_range.hpp"
#include "test/conformance/backends.hpp"

namespace pl::test {
namespace {

class conformance : public backend_test {};
class joining : public backend_test {};

// Writes through the mapping are seen by the GPU, writes of the GPU through the mapping, nothing beside them changes.
void expect_two_way(region* r, std::uint64_t pointer, std::size_t bytes, std::uint64_t seed) {
  const auto out = random_bytes(bytes, seed), back = random_bytes(bytes, seed + 1);
  char* data = r->data.load();
  ASSERT_EQ(region_write(r, data, out.data(), bytes, true), 0);
  EXPECT_EQ(device_bytes(pointer, bytes), out);
  set_device_bytes(pointer, back);
  std::vector<unsigned char> seen(bytes);
  ASSERT_EQ(region_read(r, seen.data(), data, bytes), 0);
  EXPECT_EQ(seen, back);
}

TEST_P(conformance, BytesCrossBothWays) {
  session* s = open();
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{2} << 20, (std::size_t{6} << 20) + 4096}) {
    const device_buffer buffer(bytes);
    region* r = map_exactly(s, buffer.pointer(), bytes);
    ASSERT_NE(r, nullptr);
    expect_two_way(r, buffer.pointer(), bytes, bytes);
    EXPECT_TRUE(unpin_region(s, r));
  }
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, AnyAddressAndLengthInsideAnAllocation) {
  session* s = open();
  const device_buffer buffer(300'000);
  for (const auto& [offset, bytes] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {1, 1}, {7, 13}, {4095, 2}, {65535, 70'000}, {299'999, 1}}) {
    region* r = map_exactly(s, buffer.pointer() + offset, bytes);
    ASSERT_NE(r, nullptr) << offset << "+" << bytes;
    set_device_bytes(buffer.pointer(), std::vector<unsigned char>(buffer.bytes(), 0x5a));
    expect_two_way(r, buffer.pointer() + offset, bytes, offset);
    const auto all = device_bytes(buffer.pointer(), buffer.bytes());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i < offset || i >= offset + bytes) { ASSERT_EQ(all[i], 0x5a) << "neighbour byte " << i; }
    EXPECT_TRUE(unpin_region(s, r));
  }
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, SubAllocationsOf256Bytes) {
  session* s = open();
  std::vector<std::unique_ptr<device_buffer>> buffers;
  std::vector<region*> regions;
  for (int i = 0; i < 40; ++i) {
    buffers.push_back(std::make_unique<device_buffer>(256));
    regions.push_back(map_exactly(s, buffers.back()->pointer(), 256));
    ASSERT_NE(regions.back(), nullptr);
  }
  for (int i = 0; i < 40; ++i) {
    const auto bytes = random_bytes(256, static_cast<std::uint64_t>(i));
    ASSERT_EQ(region_write(regions[static_cast<std::size_t>(i)], regions[static_cast<std::size_t>(i)]->data.load(),
                           bytes.data(), 256, true),
              0);
  }
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(device_bytes(buffers[static_cast<std::size_t>(i)]->pointer(), 256),
              random_bytes(256, static_cast<std::uint64_t>(i)))
        << i;
  EXPECT_TRUE(close_session(s));  // unpins all
}

TEST_P(joining, AdjacentVmmPiecesAreOneMapping) {
  session* s = open();
  const vmm_buffer buffer({2 << 20, 4 << 20, 2 << 20});
  region* whole = map_exactly(s, buffer.pointer(), buffer.bytes());
  ASSERT_NE(whole, nullptr);
  expect_two_way(whole, buffer.pointer(), buffer.bytes(), 3);
  const std::uint64_t straddling = buffer.pointer() + (2 << 20) - 100;
  region* part = map_exactly(s, straddling, 200);
  ASSERT_NE(part, nullptr);
  expect_two_way(part, straddling, 200, 4);
  EXPECT_TRUE(unpin_region(s, part));
  EXPECT_TRUE(unpin_region(s, whole));
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, OnePhysicalBlockAtTwoAddresses) {
  session* s = open();
  const auto& cuda = simulated_cuda();
  constexpr std::size_t kBytes = 2 << 20;
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.location = {cu::location_type::device, 0};
  cu::physical_t block = 0;
  ASSERT_EQ(cuda.cuMemCreate(&block, kBytes, &prop, 0), 0);
  std::uint64_t addresses[2] = {};
  const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
  for (auto& address : addresses) {
    ASSERT_EQ(cuda.cuMemAddressReserve(&address, kBytes, 0, 0, 0), 0);
    ASSERT_EQ(cuda.cuMemMap(address, kBytes, 0, block, 0), 0);
    ASSERT_EQ(cuda.cuMemSetAccess(address, kBytes, &access, 1), 0);
  }
  region* first = map_exactly(s, addresses[0] + 4096, 100);
  region* second = map_exactly(s, addresses[1] + 8192, 100);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  expect_two_way(second, addresses[1] + 8192, 100, 11);
  expect_two_way(first, addresses[0] + 4096, 100, 12);
  EXPECT_EQ(device_bytes(addresses[1] + 4096, 100), device_bytes(addresses[0] + 4096, 100));
  EXPECT_TRUE(close_session(s));
  for (const auto address : addresses) {
    cuda.cuMemUnmap(address, kBytes);
    cuda.cuMemAddressFree(address, kBytes);
  }
  cuda.cuMemRelease(block);
}

TEST_P(conformance, OtherMemoryMappedAtTheSameAddressIsSeen) {
  session* s = open();
  const auto& cuda = simulated_cuda();
  constexpr std::size_t kBytes = 2 << 20;
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.location = {cu::location_type::device, 0};
  std::uint64_t address = 0;
  ASSERT_EQ(cuda.cuMemAddressReserve(&address, kBytes, 0, 0, 0), 0);
  const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
  for (int round = 0; round < 4; ++round) {
    cu::physical_t block = 0;
    ASSERT_EQ(cuda.cuMemCreate(&block, kBytes, &prop, 0), 0);
    ASSERT_EQ(cuda.cuMemMap(address, kBytes, 0, block, 0), 0);
    ASSERT_EQ(cuda.cuMemSetAccess(address, kBytes, &access, 1), 0);
    region* r = map_exactly(s, address, 4096);  // earlier rounds' pins are still live: they must not be served
    ASSERT_NE(r, nullptr);
    expect_two_way(r, address, 4096, static_cast<std::uint64_t>(round) + 40);
    ASSERT_EQ(cuda.cuMemUnmap(address, kBytes), 0);
    ASSERT_EQ(cuda.cuMemRelease(block), 0);
  }
  EXPECT_TRUE(close_session(s));
  cuda.cuMemAddressFree(address, kBytes);
}

TEST_P(conformance, StreamOrderedPoolMemory) {
  session* s = open();
  const auto& cuda = simulated_cuda();
  std::uint64_t pointer = 0;
  ASSERT_EQ(cuda.cuMemAllocAsync(&pointer, 70'000, nullptr), 0);
  ASSERT_EQ(cuda.cuStreamSynchronize(nullptr), 0);
  region* r = map_exactly(s, pointer, 70'000);
  ASSERT_NE(r, nullptr);
  expect_two_way(r, pointer, 70'000, 5);
  EXPECT_TRUE(unpin_region(s, r));
  EXPECT_EQ(cuda.cuMemFreeAsync(pointer, nullptr), 0);
  EXPECT_EQ(cuda.cuStreamSynchronize(nullptr), 0);
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, EachDeviceGetsItsOwnMemory) {
  session* s = open();
  const device_buffer first(1 << 20);
  const current_device other(1);
  const device_buffer second(1 << 20);
  region* r0 = map_exactly(s, first.pointer(), 4096);
  region* r1 = map_exactly(s, second.pointer(), 4096);
  ASSERT_TRUE(r0 != nullptr && r1 != nullptr);
  expect_two_way(r1, second.pointer(), 4096, 6);
  expect_two_way(r0, first.pointer(), 4096, 7);
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, WorksWithoutACurrentContext) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  const auto& cuda = simulated_cuda();
  cu::context_t mine = nullptr;
  ASSERT_EQ(cuda.cuCtxPopCurrent_v2(&mine), 0);
  auto pinned = pin_region(s, exactly(buffer.pointer(), 4096));
  cu::context_t now = mine;
  EXPECT_EQ(cuda.cuCtxGetCurrent(&now), 0);
  EXPECT_EQ(now, nullptr) << "the caller's context stack was changed";
  ASSERT_EQ(cuda.cuCtxPushCurrent_v2(mine), 0);
  EXPECT_TRUE(pinned) << (pinned ? "" : pinned.error().message);
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, MemoryOutlivesItsFreeWhilePinned) {
  session* s = open();
  device_buffer buffer(4 << 20);
  region* r = map_exactly(s, buffer.pointer(), buffer.bytes());
  ASSERT_NE(r, nullptr);
  const auto written = random_bytes(buffer.bytes(), 8);
  ASSERT_EQ(region_write(r, r->data.load(), written.data(), written.size(), true), 0);
  buffer.free_now();
  const device_buffer again(4 << 20);  // very likely at the same address: other memory
  set_device_bytes(again.pointer(), std::vector<unsigned char>(again.bytes(), 0));
  std::vector<unsigned char> seen(written.size());
  ASSERT_EQ(region_read(r, seen.data(), r->data.load(), seen.size()), 0);
  EXPECT_EQ(seen, written);
  EXPECT_TRUE(unpin_region(s, r));
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, AFreshPinAtAReusedAddressShowsTheNewMemory) {
  session* s = open();
  std::uint64_t reused = 0;
  for (int round = 0; round < 20; ++round) {
    device_buffer buffer(2 << 20);
    reused += buffer.pointer() == reused ? 1 : 0;
    region* r = map_exactly(s, buffer.pointer(), 4096);
    ASSERT_NE(r, nullptr);
    expect_two_way(r, buffer.pointer(), 4096, static_cast<std::uint64_t>(round) + 100);
    buffer.free_now();
    if (round % 2 == 0) { EXPECT_TRUE(unpin_region(s, r)); }  // every other pin stays behind
  }
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, PartialMapsAndTheirRules) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  auto pinned = pin_region(s, in_granules(buffer.pointer(), buffer.bytes()));
  ASSERT_TRUE(pinned);
  EXPECT_EQ((*pinned)->pin->range().size_bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(map_region(s, *pinned, 0, arch::mapping_type::none).code(), EINVAL);
  EXPECT_EQ(map_region(s, *pinned, (1 << 20) + 1, arch::mapping_type::none).code(), EINVAL);
  EXPECT_EQ(unmap_region(s, *pinned).code(), EINVAL);
  EXPECT_EQ(region_write(*pinned, nullptr, "x", 1, true), EINVAL) << "not mapped";
  ASSERT_TRUE(map_region(s, *pinned, 5000, arch::mapping_type::wc));
  EXPECT_EQ((*pinned)->data_bytes.load(), 8192u);
  EXPECT_EQ(map_region(s, *pinned, 4096, arch::mapping_type::none).code(), EAGAIN);
  char* data = (*pinned)->data.load();
  EXPECT_EQ(region_write(*pinned, data + 8190, "xyz", 2, true), 0);
  EXPECT_EQ(region_write(*pinned, data + 8190, "xyz", 3, true), EINVAL);
  EXPECT_EQ(region_write(*pinned, data - 1, "xyz", 1, true), EINVAL);
  EXPECT_EQ(region_write(*pinned, data, "xyz", SIZE_MAX, true), EINVAL);
  ASSERT_TRUE(unmap_region(s, *pinned));
  ASSERT_TRUE(map_region(s, *pinned, 1 << 20, arch::mapping_type::none)) << "mapping again";
  ASSERT_TRUE(unmap_region(s, *pinned));
  const int refused = GetParam().gdrdrv_minor < 5 ? EINVAL : EOPNOTSUPP;  // old modules tell only afterwards
  EXPECT_EQ(map_region(s, *pinned, 4096, arch::mapping_type::cached).code(), refused);
  EXPECT_EQ((*pinned)->state.load(), region_state::pinned);
  EXPECT_TRUE(unpin_region(s, *pinned));
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, SecondMappingOfAnAllocationIsIndependent) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  region* first = map_exactly(s, buffer.pointer(), 65536);
  region* second = map_exactly(s, buffer.pointer() + 4096, 65536);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(first, second);
  EXPECT_TRUE(unpin_region(s, first));
  expect_two_way(second, buffer.pointer() + 4096, 65536, 9);
  EXPECT_TRUE(unpin_region(s, second));
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, ClientsThatRoundOutwardsToGranulesAreServed) {
  session* s = open();
  const device_buffer before(1000), buffer(100'000);
  const std::uint64_t begin = align_down(buffer.pointer(), kGpuPageBytes);
  const std::uint64_t end = align_down(buffer.pointer() + buffer.bytes() + kGpuPageBytes - 1, kGpuPageBytes);
  auto pinned = pin_region(s, in_granules(begin, end - begin));
  ASSERT_TRUE(pinned) << pinned.error().message;
  EXPECT_EQ((*pinned)->pin->range().begin, begin);
  ASSERT_TRUE(map_region(s, *pinned, end - begin, arch::mapping_type::none));
  const auto bytes = random_bytes(buffer.bytes(), 10);
  ASSERT_EQ(region_write(*pinned, (*pinned)->data.load() + (buffer.pointer() - begin), bytes.data(), bytes.size(), true), 0);
  EXPECT_EQ(device_bytes(buffer.pointer(), buffer.bytes()), bytes);
  EXPECT_TRUE(close_session(s));
}

// Runs `body` in a forked child; its return value is the exit status, a signal is 1000 + number.
template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    // A sanitizer's handler would turn the signal that a test waits for into an ordinary exit.
    std::signal(SIGSEGV, SIG_DFL);
    std::signal(SIGBUS, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_P(conformance, AForkedChildIsKeptOut) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  region* r = map_exactly(s, buffer.pointer(), 4096);
  ASSERT_NE(r, nullptr);
  char* data = r->data.load();
  int word = 0;
  EXPECT_EQ(in_child([&] { return check_session(s); }), EACCES);
  EXPECT_EQ(in_child([&] { return region_write(r, data, "x", 1, true); }), EACCES);
  EXPECT_EQ(in_child([&] { return region_read(r, &word, data, 4); }), EACCES);
  EXPECT_EQ(in_child([&] { return pin_region(s, exactly(buffer.pointer(), 64)).code(); }), EACCES);
  EXPECT_EQ(in_child([&] { return unpin_region(s, r).code(); }), EACCES);
  EXPECT_EQ(in_child([&] { return close_session(s).code(); }), EACCES);
  ASSERT_EQ(region_write(r, data, "P", 1, true), 0);
  // A fault, or (where a sanitizer's runtime took the addresses in the child) at least not the GPU's byte.
  EXPECT_NE(in_child([&] { return *reinterpret_cast<volatile char*>(data) == 'P' ? 1 : 2; }), 1) << "mapping inherited";
  EXPECT_EQ(region_write(r, data, "y", 1, true), 0) << "the parent's mapping must survive";
  EXPECT_EQ(device_bytes(buffer.pointer(), 1)[0], 'y');
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, AForkedChildMayOpenItsOwnSession) {
  session* s = open();
  EXPECT_EQ(in_child([&] {
              auto own = open_session({io_.get(), &simulated_cuda()}, GetParam().backend);
              if (!own) return 1;
              if (check_session(s) != EACCES) return 2;  // the parent's is still not usable
              if (check_session(*own) != 0) return 3;
              return close_session(*own) ? 0 : 4;
            }),
            0);
  EXPECT_TRUE(close_session(s));
}

// The signal that a read at `address` ends with in a child process. A child inherits the range that a forgotten mapping
// leaves; it does not inherit a mapping.
int signal_of_reading(const volatile char* address) {
  return in_child([address] { return *address == 1 ? 1 : 2; });
}

TEST_P(conformance, AForgottenMappingRaisesSigbus) {
  const device_buffer buffer(1 << 20);
  const auto bytes = random_bytes(1 << 20, 21);
  recount_faulting_ranges_for_tests();
  for (const bool closes : {true, false}) {
    set_device_bytes(buffer.pointer(), bytes);
    session* s = open();
    auto pinned = pin_region(s, in_granules(buffer.pointer(), buffer.bytes()));
    ASSERT_TRUE(pinned);
    ASSERT_TRUE(map_region(s, *pinned, 1 << 20, arch::mapping_type::none));
    const volatile char* const data = (*pinned)->data.load();
    ASSERT_TRUE(closes ? close_session(s) : unpin_region(s, *pinned));
    for (const std::size_t offset : {0, 4096, (1 << 20) - 1})
      EXPECT_EQ(signal_of_reading(data + offset), 1000 + SIGBUS) << "offset " << offset;
    // Nothing new is put there, so a stale pointer reaches nobody's memory.
    void* const next = mmap(nullptr, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(next, static_cast<const volatile void*>(data));
    munmap(next, 1 << 20);
    EXPECT_EQ(device_bytes(buffer.pointer(), 1 << 20), bytes);
    if (!closes) { EXPECT_TRUE(close_session(s)); }
  }
}

TEST_P(conformance, AnUnmappedMappingFreesItsAddresses) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  auto pinned = pin_region(s, in_granules(buffer.pointer(), buffer.bytes()));
  ASSERT_TRUE(pinned);
  ASSERT_TRUE(map_region(s, *pinned, 1 << 20, arch::mapping_type::none));
  char* const data = (*pinned)->data.load();
  ASSERT_TRUE(unmap_region(s, *pinned));
  void* const again = mmap(data, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_EQ(again, static_cast<void*>(data)) << "something was left at the addresses of an unmapped mapping";
  if (again != MAP_FAILED) munmap(again, 4096);
  EXPECT_TRUE(close_session(s));
}

TEST_P(conformance, GdrcopysMappingsShareNoAddress) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  set_device_bytes(buffer.pointer(), std::vector<unsigned char>(buffer.bytes(), 0));
  region* both[2] = {};
  for (auto& one : both) {
    pin_request request = in_granules(buffer.pointer(), buffer.bytes());
    request.is_sole = true;
    auto pinned = pin_region(s, request);
    ASSERT_TRUE(pinned);
    ASSERT_TRUE(map_region(s, *pinned, 65536, arch::mapping_type::none));
    one = *pinned;
  }
  char* const first = both[0]->data.load();
  ASSERT_NE(first, both[1]->data.load()) << "a client that keys a table by address mixes them up";
  ASSERT_EQ(region_write(both[0], first, "same", 4, true), 0);
  EXPECT_EQ(std::memcmp(both[1]->data.load(), "same", 4), 0) << "two views of the same memory";
  ASSERT_TRUE(unmap_region(s, both[0]));
  EXPECT_EQ(signal_of_reading(first), 1000 + SIGSEGV) << "the pointer outlived its unmapping";
  EXPECT_EQ(std::memcmp(both[1]->data.load(), "same", 4), 0) << "the other pin's must stay";
  EXPECT_TRUE(close_session(s));
}

INSTANTIATE_TEST_SUITE_P(backends, joining, testing::ValuesIn(joining_backends()), label_of);
INSTANTIATE_TEST_SUITE_P(backends, conformance, testing::ValuesIn(all_backends()), label_of);

}  // namespace
}  // namespace pl::test
