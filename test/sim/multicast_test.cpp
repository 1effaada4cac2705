// SPDX-License-Identifier: Apache-2.0
// Multicast objects within one process; several processes' are tested by `peerlane bandwidth` (multinode_e2e.py).
#include "cuda/kernel_image.hpp"
#include "test/sim/process.hpp"
#include "test/sim/sim_test.hpp"
#include "test_kernels_image.hpp"

namespace pl::cu {
namespace {

constexpr std::size_t kBytes = 2u << 20;
constexpr std::size_t kStored = 4096;

class Multicast : public SimTest {
 protected:
  // A team of both devices, `memory_` on each, the memory mapped at plain_, the team not yet.
  void make(int handle_types = handle_type::posix_fd) {
    const multicast_prop prop{2, kBytes, static_cast<unsigned long long>(handle_types), 0};
    CU_OK(cuMulticastCreate(&team_, &prop));
    for (int d = 0; d < 2; ++d) {
      const allocation_prop memory{
          allocation_type::pinned, handle_types, {location_type::device, d}, nullptr, {0, 0, 0, {}}};
      CU_OK(cuMemCreate(&memory_[d], kBytes, &memory, 0));
      map(memory_[d], d, plain_[d]);
    }
  }
  void join() {
    for (int d = 0; d < 2; ++d) CU_OK(cuMulticastAddDevice(team_, d));
  }
  void bind() {
    for (int d = 0; d < 2; ++d) CU_OK(cuMulticastBindMem(team_, 0, memory_[d], 0, kBytes, 0));
  }
  static void map(physical_t physical, int gpu, device_ptr& out) {
    CU_OK(cuMemAddressReserve(&out, kBytes, 0, 0, 0));
    CU_OK(cuMemMap(out, kBytes, 0, physical, 0));
    const access_desc access{{location_type::device, gpu}, access_flags::read_write};
    CU_OK(cuMemSetAccess(out, kBytes, &access, 1));
  }
  // The kernel on device 0.
  result_t store(device_ptr address) {
    const auto loaded = load_kernels(**driver(), kernels::test_kernels());
    function_t function = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&function, *loaded, "store_everywhere"), error_code::success);
    std::uint64_t bytes = kStored;
    void* parameters[] = {&address, &bytes};
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), error_code::success);
    return cuCtxSynchronize();
  }
  // Does device `d` have what store() stores? Else, is it zero?
  bool has(int d) {
    std::vector<std::uint64_t> words(kStored / 8);
    EXPECT_EQ(cuMemcpyDtoH_v2(words.data(), plain_[d], kStored), error_code::success);
    std::vector<std::uint64_t> expected(words.size());
    for (std::size_t offset = 0; offset < kStored; offset += 16)
      expected[offset / 8] = offset, expected[offset / 8 + 1] = ~offset;
    expected[0] = 0xfeed;
    if (words == expected) return true;
    EXPECT_EQ(words, std::vector<std::uint64_t>(words.size())) << "device " << d;
    return false;
  }

  physical_t team_ = 0;
  physical_t memory_[2] = {};
  device_ptr plain_[2] = {};
};

TEST_F(Multicast, AStoreReachesTheMemoryOfEveryDevice) {
  make();
  join();
  bind();
  device_ptr everywhere = 0;
  map(team_, 0, everywhere);
  CU_OK(store(everywhere));
  EXPECT_TRUE(has(0));
  EXPECT_TRUE(has(1));
  EXPECT_EQ(attribute<unsigned>(pointer_attribute::memory_type, everywhere), memory_type::device);
}

TEST_F(Multicast, AnImportedHandleIsTheSameTeam) {
  make();
  int fd = -1;
  CU_OK(cuMemExportToShareableHandle(&fd, team_, handle_type::posix_fd, 0));
  physical_t same = 0;
  CU_OK(
      cuMemImportFromShareableHandle(&same, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), handle_type::posix_fd));
  close(fd);
  CU_OK(cuMulticastAddDevice(same, 1));
  CU_FAILS(invalid_value, cuMulticastAddDevice(team_, 1));
  CU_OK(cuMulticastAddDevice(team_, 0));
  CU_OK(cuMulticastBindMem(team_, 0, memory_[0], 0, kBytes, 0));
  CU_OK(cuMulticastBindMem(same, 0, memory_[1], 0, kBytes, 0));
  CU_OK(cuMemRelease(team_));
  device_ptr everywhere = 0;
  map(same, 0, everywhere);
  CU_OK(store(everywhere));
  EXPECT_TRUE(has(1));
}

TEST_F(Multicast, NothingIsBoundOrMappedBeforeAllDevicesAreThere) {
  make();
  CU_OK(cuMulticastAddDevice(team_, 0));
  CU_FAILS(invalid_device, cuMulticastBindMem(team_, 0, memory_[1], 0, kBytes, 0));
  CU_FAILS(illegal_state, cuMulticastBindMem(team_, 0, memory_[0], 0, kBytes, 0));
  device_ptr range = 0;
  CU_OK(cuMemAddressReserve(&range, kBytes, 0, 0, 0));
  CU_FAILS(illegal_state, cuMemMap(range, kBytes, 0, team_, 0));
  CU_OK(cuMulticastAddDevice(team_, 1));
  bind();
  CU_OK(cuMemMap(range, kBytes, 0, team_, 0));
  CU_FAILS(invalid_value, cuMulticastBindMem(team_, 0, memory_[0], 0, kBytes, 0));
}

TEST_F(Multicast, WrongArgumentsAreRefused) {
  make();
  join();
  CU_FAILS(invalid_value, cuMulticastBindMem(team_, 4096, memory_[0], 0, kBytes, 0));
  CU_FAILS(invalid_value, cuMulticastBindMem(team_, kBytes, memory_[0], 0, kBytes, 0));
  CU_FAILS(invalid_value, cuMulticastBindMem(memory_[0], 0, memory_[0], 0, kBytes, 0));
  CU_FAILS(invalid_value, cuMulticastUnbind(team_, 0, 0, kBytes));
  physical_t unshared = 0;
  const allocation_prop prop{allocation_type::pinned, 0, {location_type::device, 0}, nullptr, {0, 0, 0, {}}};
  CU_OK(cuMemCreate(&unshared, kBytes, &prop, 0));
  CU_FAILS(invalid_value, cuMulticastBindMem(team_, 0, unshared, 0, kBytes, 0));
  CU_OK(cuMemRelease(unshared));
  std::size_t unit = 0;
  multicast_prop odd{2, kBytes, 0, 0};
  CU_OK(cuMulticastGetGranularity(&unit, &odd, granularity::recommended));
  odd.bytes = unit / 2;
  physical_t refused = 0;
  CU_FAILS(invalid_value, cuMulticastCreate(&refused, &odd));
  odd = {17, kBytes, 0, 0};
  CU_FAILS(invalid_value, cuMulticastCreate(&refused, &odd));
}

// What hardware leaves undefined is an error here.
class MulticastMisuse : public Multicast {
 protected:
  void TearDown() override {
    cuCtxDestroy_v2(context_);  // it has failed
    context_ = nullptr;
  }
};

TEST_F(MulticastMisuse, AStoreWithoutTheMemoryOfADeviceFaults) {
  make();
  join();
  bind();
  device_ptr everywhere = 0;
  map(team_, 0, everywhere);
  CU_OK(cuMulticastUnbind(team_, 1, 0, kBytes));
  CU_FAILS(illegal_address, store(everywhere));
}

TEST_F(MulticastMisuse, OrdinaryAccessesOfAMulticastAddressFail) {
  make();
  join();
  bind();
  device_ptr everywhere = 0;
  map(team_, 0, everywhere);
  std::uint32_t word = 0;
  CU_FAILS(invalid_value, cuMemcpyHtoD_v2(everywhere, &word, sizeof word));
  CU_FAILS(invalid_value, cuMemsetD8_v2(everywhere, 1, 16));
  CU_FAILS(illegal_address, store(plain_[0]));
}

TEST_F(Multicast, AMachineWithoutItSaysSo) {
  int has = 0;
  CU_OK(cuDeviceGetAttribute(&has, device_attribute::multicast_supported, 0));
  EXPECT_EQ(has, 1);
  EXPECT_EQ(run_child("ProcessChild.NoMulticast", {"PEERLANE_SIM_MULTICAST=0"}), 0);
}

}  // namespace
}  // namespace pl::cu
