// SPDX-License-Identifier: Apache-2.0
// Multicast transfers as the runner makes and checks them. Processes that share an object: multinode_e2e.py.
#include "test/tools/bandwidth/bandwidth_fixture.hpp"

namespace pl::bandwidth::test {
namespace {

constexpr std::uint64_t kBytes = 2u << 20;

// A multicast object of two GPUs in one process, mapped for the first.
class team {
 public:
  explicit team(const cu::driver_table& cuda) : cuda_(cuda) {
    const cu::multicast_prop prop{2, kBytes, 0, 0};
    ok(cuda.cuMulticastCreate(&handle_, &prop));
    for (int gpu = 0; gpu < 2; ++gpu) ok(cuda.cuMulticastAddDevice(handle_, gpu));
    for (int gpu = 0; gpu < 2; ++gpu) {
      cu::allocation_prop memory{};
      memory.type = cu::allocation_type::pinned;
      memory.location = {cu::location_type::device, gpu};
      ok(cuda.cuMemCreate(&memory_[gpu], kBytes, &memory, 0));
      ok(cuda.cuMulticastBindMem(handle_, 0, memory_[gpu], 0, kBytes, 0));
      replica_[gpu] = map(memory_[gpu], gpu);
    }
    object_ = map(handle_, 0);
  }
  ~team() {
    for (const auto address : {object_, replica_[0], replica_[1]})
      ok(cuda_.cuMemUnmap(address, kBytes)), cuda_.cuMemAddressFree(address, kBytes);
    for (const auto handle : {handle_, memory_[0], memory_[1]}) ok(cuda_.cuMemRelease(handle));
  }
  team(const team&) = delete;
  team& operator=(const team&) = delete;
  memory_view object() const { return view(object_, 0); }
  memory_view replica(int gpu) const { return view(replica_[gpu], gpu); }

 private:
  static void ok(cu::result_t rc) { EXPECT_EQ(rc, cu::error_code::success); }
  static memory_view view(cu::device_ptr address, int gpu) { return {gpu_place(gpu), address, nullptr, kBytes, true}; }
  cu::device_ptr map(cu::physical_t physical, int gpu) {
    cu::device_ptr address = 0;
    ok(cuda_.cuMemAddressReserve(&address, kBytes, 0, 0, 0));
    ok(cuda_.cuMemMap(address, kBytes, 0, physical, 0));
    const cu::access_desc access{{cu::location_type::device, gpu}, cu::access_flags::read_write};
    ok(cuda_.cuMemSetAccess(address, kBytes, &access, 1));
    return address;
  }
  const cu::driver_table& cuda_;
  cu::physical_t handle_ = 0, memory_[2] = {};
  cu::device_ptr replica_[2] = {}, object_ = 0;
};

struct broadcast {
  explicit broadcast(machine& m, std::uint64_t bytes) : shared(m.gpus->cuda()) {
    transfer.source = must(m.pool.get(gpu_place(0), bytes, 0, 0));
    transfer.destination = shared.object();
    transfer.executor = {executor_kind::sm, 0, 0};
    transfer.bytes = bytes;
    transfer.is_multicast = true;
    transfer.data_key = 7;
    for (int gpu = 0; gpu < 2; ++gpu) arrivals.push_back({shared.replica(gpu), bytes, 7});
  }
  team shared;
  bound_transfer transfer;
  std::vector<arrival> arrivals;
};

TEST(multicast, every_byte_arrives_on_every_gpu) {
  machine m;
  for (const std::uint64_t bytes : {std::uint64_t{4}, std::uint64_t{100}, std::uint64_t{65540}}) {
    broadcast one(m, bytes);
    const auto outcome = must(m.run.run({&one.transfer, 1}, quick(), {}, one.arrivals));
    ASSERT_EQ(outcome.arrived.size(), 2u);
    EXPECT_EQ(outcome.arrived[0].bytes + outcome.arrived[1].bytes, 0u) << bytes;
    EXPECT_GT(outcome.each[0].own_gb_per_s[0], 0);
  }
}

TEST(multicast, a_wrong_byte_of_one_gpu_is_told_for_that_gpu) {
  machine m;
  broadcast one(m, 4096);
  run_hooks spoil;
  spoil.after_sample = [&]() -> status {
    std::uint32_t word = 0;
    const auto& cuda = m.gpus->cuda();
    cuda.cuMemcpyDtoH_v2(&word, one.shared.replica(1).address + 100, 4);
    word ^= 0x10;
    cuda.cuMemcpyHtoD_v2(one.shared.replica(1).address + 100, &word, 4);
    return {};
  };
  const auto outcome = must(m.run.run({&one.transfer, 1}, quick(), spoil, one.arrivals));
  EXPECT_EQ(outcome.arrived[0].bytes, 0u);
  EXPECT_EQ(outcome.arrived[1].bytes, 2u);  // in two samples
  EXPECT_EQ(outcome.arrived[1].first_offset, 100u);
}

TEST(multicast, what_has_not_arrived_is_seen) {
  machine m;
  broadcast one(m, 4096);
  const auto outcome = must(m.run.run({}, quick(), {}, one.arrivals));  // nobody sends
  EXPECT_EQ(outcome.arrived[0].bytes, 2 * 4096u);
  EXPECT_EQ(outcome.arrived[1].bytes, 2 * 4096u);
}

TEST(multicast, other_executors_and_parts_of_words_are_refused) {
  machine m;
  broadcast one(m, 4096);
  one.transfer.bytes = 4098;
  EXPECT_EQ(m.run.run({&one.transfer, 1}, quick()).code(), EINVAL);
  one.transfer.bytes = 4096;
  one.transfer.executor.kind = executor_kind::ce;
  EXPECT_EQ(m.run.run({&one.transfer, 1}, quick()).code(), EINVAL);
}

}  // namespace
}  // namespace pl::bandwidth::test
