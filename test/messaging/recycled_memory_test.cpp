// SPDX-License-Identifier: Apache-2.0
// Addresses that become other memory between messages, and how often the driver is asked to notice.
#include <sys/mman.h>

#include <thread>

#include "messaging/host_ranges.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kBytes = 2 << 20;

// Rank 0: sends from `address` and receives there, as memory whose kind it does not say; `by_device`: by that it is filled.
int exchange_at(const rank_context& ctx, std::uint64_t address, bool by_device, unsigned round) {
  constexpr std::size_t kMessage = 64;
  const auto outgoing = test::random_bytes(kMessage, 2 * round), incoming = test::random_bytes(kMessage, 2 * round + 1);
  if (ctx.rank == 1) {
    std::vector<unsigned char> got(kMessage);
    CHECK_OK(ctx.messenger->recv(0, host_buffer(got.data(), kMessage), round, kWholeTag, kTimeout));
    CHECK(got == outgoing);
    CHECK_OK(ctx.messenger->send(0, host_buffer(incoming.data(), kMessage), round, kTimeout));
    return 0;
  }
  if (by_device) test::set_device_bytes(address, outgoing);
  else std::memcpy(reinterpret_cast<void*>(address), outgoing.data(), kMessage);
  CHECK_OK(ctx.messenger->send(1, {address, kMessage}, round, kTimeout));
  CHECK_OK(ctx.messenger->recv(1, {address, kMessage}, round, kWholeTag, kTimeout));
  std::vector<unsigned char> got(kMessage);
  if (by_device) got = test::device_bytes(address, kMessage);
  else std::memcpy(got.data(), reinterpret_cast<void*>(address), kMessage);
  CHECK(got == incoming);
  return 0;
}

// The simulated GPU gives out the lowest free address, so what is freed is what the next one gets.
TEST(recycled_memory, is_what_it_is_now) {
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(),
                    [](const rank_context& ctx) {
                      const std::uint64_t address = ctx.rank == 0 ? test::device_buffer(kBytes).pointer() : 0;
                      void* const pointer = reinterpret_cast<void*>(address);
                      unsigned round = 0;
                      const auto as_device = [&](std::size_t bytes) {
                        std::optional<test::device_buffer> memory;
                        if (ctx.rank == 0) memory.emplace(bytes);
                        CHECK(ctx.rank != 0 || memory->pointer() == address);
                        for (int again = 0; again < 2; ++again)
                          if (const int line = exchange_at(ctx, address, true, ++round)) return line;
                        return 0;
                      };
                      for (int turn = 0; turn < 5; ++turn) {
                        for (const std::size_t bytes : {kBytes, kBytes, 3 * kBytes, std::size_t{4096}})
                          if (const int line = as_device(bytes)) return line;
                        // The CPU's own memory at the address, unknown to the driver.
                        constexpr int kPlain = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
                        if (ctx.rank == 0) CHECK(mmap(pointer, kBytes, PROT_READ | PROT_WRITE, kPlain, -1, 0) == pointer);
                        if (const int line = exchange_at(ctx, address, false, ++round)) return line;
                        if (ctx.rank == 0) CHECK(mmap(pointer, kBytes, PROT_NONE, kPlain, -1, 0) == pointer);
                        std::optional<test::vmm_buffer> pieces;
                        if (ctx.rank == 0) pieces.emplace(std::vector<std::size_t>{kBytes, kBytes});
                        CHECK(ctx.rank != 0 || pieces->pointer() == address);
                        if (const int line = exchange_at(ctx, address, true, ++round)) return line;
                      }
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

// Other physical memory under one reservation. The simulated driver gives each mapping an id of its own; another may not, so
// such memory is always asked for whole (below).
TEST(recycled_memory, remapped_under_one_reservation) {
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(),
                    [](const rank_context& ctx) {
                      const auto& cuda = test::simulated_cuda();
                      cu::allocation_prop prop{};
                      prop.type = cu::allocation_type::pinned;
                      prop.location = {cu::location_type::device, 0};
                      prop.flags.gpu_direct_rdma_capable = 1;
                      const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
                      std::uint64_t address = 0;
                      if (ctx.rank == 0)
                        CHECK(cuda.cuMemAddressReserve(&address, kBytes, 0, 0, 0) == cu::error_code::success);
                      for (unsigned round = 0; round < 6; ++round) {
                        cu::physical_t memory = 0;
                        if (ctx.rank == 0)
                          CHECK(cuda.cuMemCreate(&memory, kBytes, &prop, 0) == cu::error_code::success &&
                                cuda.cuMemMap(address, kBytes, 0, memory, 0) == cu::error_code::success &&
                                cuda.cuMemSetAccess(address, kBytes, &access, 1) == cu::error_code::success);
                        if (const int line = exchange_at(ctx, address, true, round)) return line;
                        if (ctx.rank == 0) cuda.cuMemUnmap(address, kBytes), cuda.cuMemRelease(memory);
                      }
                      if (ctx.rank == 0) cuda.cuMemAddressFree(address, kBytes);
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

// Of this thread: the mapping cache asks in a thread of its own.
struct questions {
  unsigned whole = 0, of_id = 0;
  bool operator==(const questions&) const = default;
};
thread_local questions t_asked;

cu::driver_table counting_driver() {
  cu::driver_table out = test::simulated_cuda();
  out.cuPointerGetAttributes = [](unsigned count, int* attributes, void** values, cu::device_ptr pointer) {
    ++t_asked.whole;
    return test::simulated_cuda().cuPointerGetAttributes(count, attributes, values, pointer);
  };
  out.cuPointerGetAttribute = [](void* value, int attribute, cu::device_ptr pointer) {
    ++t_asked.of_id;
    return test::simulated_cuda().cuPointerGetAttribute(value, attribute, pointer);
  };
  return out;
}

// The questions of one message of 256 bytes, to or from this memory, when it is not the first.
int count_one(const rank_context& ctx, messenger& communicator, const buffer& memory, questions& out) {
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(communicator.barrier(kTimeout));
    t_asked = {};
    if (ctx.rank == 0) CHECK_OK(communicator.send(1, memory, 5, kTimeout));
    else CHECK_OK(communicator.recv(0, memory, 5, kWholeTag, kTimeout));
    out = t_asked;
  }
  return 0;
}

int count_questions(const rank_context& ctx) {
  const auto cuda = counting_driver();
  auto opened = messenger::open(&cuda, *ctx.group);
  CHECK_OK(opened);
  messenger& communicator = **opened;
  constexpr std::size_t kMessage = 256;
  const piece device(true, kMessage);
  char on_stack[kMessage] = {};
  void* const mapped = mmap(nullptr, kMessage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  questions asked;
  for (const auto kind : {memory_kind::device, memory_kind::detect}) {
    if (const int line = count_one(ctx, communicator, device.all(kind), asked)) return line;
    CHECK((asked == questions{0, 1}));
  }
  auto host = host_buffer(on_stack, kMessage);
  if (const int line = count_one(ctx, communicator, host, asked)) return line;
  CHECK(asked == questions{});
  host.kind = memory_kind::detect;
  if (const int line = count_one(ctx, communicator, host, asked)) return line;
  CHECK(asked == questions{});
  host.address = reinterpret_cast<std::uint64_t>(mapped);
  if (const int line = count_one(ctx, communicator, host, asked)) return line;
  CHECK((asked == questions{1, 0}));
  std::optional<test::vmm_buffer> pieces;
  if (ctx.rank == 0) pieces.emplace(std::vector<std::size_t>{kBytes});
  if (const int line =
          count_one(ctx, communicator, ctx.rank == 0 ? device_buffer(pieces->pointer(), kMessage) : host, asked))
    return line;
  CHECK((asked == questions{1, 0}));  // rank 1: the mapped memory
  const auto registered = communicator.register_memory(device.all());
  CHECK_OK(registered);
  if (const int line = count_one(ctx, communicator, device.all(), asked)) return line;
  CHECK(asked == questions{});
  munmap(mapped, kMessage);
  return communicator.barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(recycled_memory, a_message_asks_the_driver_once_or_not_at_all) {
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(), count_questions), 0);
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

TEST(host_ranges, the_heap_as_far_as_it_goes_now) {
  host_ranges known;
  const auto begin = address_of(sbrk(4096));
  const auto end = address_of(sbrk(0));
  EXPECT_TRUE(known.contains(begin, 4096));
  EXPECT_TRUE(known.contains(end - 1, 1));
  EXPECT_FALSE(known.contains(end - 1, 2));
  EXPECT_FALSE(known.contains(begin, ~std::size_t{0}));
  if (end == begin + 4096) sbrk(-4096);
  EXPECT_EQ(known.contains(begin, 4096), end != begin + 4096);
}

TEST(host_ranges, the_stack_of_the_thread_that_asks) {
  host_ranges known;
  static char of_program[8];
  char mine[64];
  EXPECT_TRUE(known.contains(address_of(mine), sizeof mine));
  EXPECT_FALSE(known.contains(address_of(mine), std::size_t{1} << 40));
  EXPECT_FALSE(known.contains(address_of(mine) - (64 << 10), 8)) << "below the frame";
  EXPECT_FALSE(known.contains(address_of(of_program), sizeof of_program));
  void* const mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_FALSE(known.contains(address_of(mapped), 8));
  munmap(mapped, 4096);
  for (int i = 0; i < 12; ++i) {  // more than it remembers
    std::thread([&] {
      char others[64] = {};
      const bool is_known = known.contains(address_of(others), sizeof others);
      EXPECT_TRUE(is_known || i > 0);
      EXPECT_FALSE(known.contains(address_of(mine), sizeof mine));
    }).join();
  }
  EXPECT_TRUE(known.contains(address_of(mine), sizeof mine));
}

}  // namespace
}  // namespace pl::messaging
