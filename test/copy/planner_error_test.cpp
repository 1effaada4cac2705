// SPDX-License-Identifier: Apache-2.0
// What a planner refuses, and what it does where a way is not open: no mapping, no engine, contexts that come and go.
#include <dlfcn.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"
#include "test/support/counting_io.hpp"

namespace pl::copy {
namespace {

class PlannerError : public planner_fixture {};

TEST_F(PlannerError, EveryMistakeHasItsOwnMessageAndChangesNothing) {
  open();
  guarded_device device(4096);
  guarded_host host(4096), pinned(context_of(0), 4096);
  auto freed = std::make_unique<test::device_buffer>(4 << 20);
  const auto gone = freed->pointer();
  freed.reset();
  std::uint64_t managed = 0;
  ASSERT_EQ(cuda_.cuMemAllocManaged(&managed, 4096, 1), 0);
  const auto to_device = direction::to_device;
  const auto to_host = direction::to_host;
  const auto on_device = direction::on_device;
  const auto past = device.address() + (64u << 20);
  struct mistake {
    transfer attempt;
    const char* says;
  };
  const mistake mistakes[] = {
      {{to_device, device.address(), host.address(), 8u << 20}, "its allocation ends"},
      {{to_device, device.address(), host.address(), SIZE_MAX}, "exceeds the address space"},
      {{to_device, device.address(), host.address(), 16, 3, 15, 16}, "overlap"},
      {{to_device, device.address(), host.address(), 16, 3, 16, 15}, "overlap"},
      {{to_device, device.address(), host.address(), 16, SIZE_MAX, 1u << 20, 1u << 20}, "exceeds the address space"},
      {{to_device, device.address(), host.address(), std::size_t{1} << 32, std::size_t{1} << 32, std::size_t{1} << 32,
        std::size_t{1} << 32},
       "exceeds the address space"},
      {{to_device, device.address(), 0, 16}, "a null pointer"},
      {{to_host, 0, device.address(), 16}, "a null pointer"},
      {{to_device, 0, host.address(), 16}, "is not CUDA memory"},
      {{to_host, host.address(), 0, 16}, "is not CUDA memory"},
      {{to_device, gone, host.address(), 16}, "freed"},
      {{to_host, host.address(), gone, 16}, "freed"},
      {{on_device, device.address(), gone, 16}, "freed"},
      {{to_device, host.address(), host.address() + 100, 16}, "plain host memory"},
      {{to_device, pinned.address(), host.address(), 16}, "is host memory"},
      {{on_device, device.address(), pinned.address(), 16}, "is host memory"},
      {{to_device, managed, host.address(), 16}, "managed memory"},
      {{to_host, host.address(), managed, 16}, "managed memory"},
      {{on_device, device.address(), past, 16}, "is not CUDA memory"},
      {{to_device, device.address(), host.address(), 100, 5, 3u << 20, 100}, "its allocation ends"},
  };
  std::set<std::string> messages;
  for (const auto& [transfer, says] : mistakes)
    for (const bool by_force : {false, true}) {
      auto done = by_force ? planner_->copy_by({method::copy_engine, 1}, transfer) : planner_->copy(transfer);
      ASSERT_EQ(done.code(), EINVAL) << says;
      EXPECT_NE(done.error().message.find(says), std::string::npos) << done.error().message;
      messages.insert(done.error().message);
    }
  EXPECT_GE(messages.size(), 12u);
  EXPECT_EQ(planner_->fill(0, 1, 16).code(), EINVAL);
  EXPECT_NE(planner_->fill(0, 1, 16).error().message.find("destination"), std::string::npos);
  EXPECT_EQ(planner_->fill(device.address(), 1, 8u << 20).code(), EINVAL);
  EXPECT_EQ(planner_->fill(gone, 1, 16).code(), EINVAL);
  EXPECT_EQ(device.get(), bytes_t(4096, kCanary));
  EXPECT_EQ(host.get(), bytes_t(4096, kCanary));
  EXPECT_EQ(pinned.get(), bytes_t(4096, kCanary));
  const auto counts = planner_->counts();
  for (std::size_t i = 0; i < kMethods; ++i) EXPECT_EQ(counts.copies[i], 0u);
  EXPECT_EQ(cuda_.cuMemFree_v2(managed), 0);
}

TEST_F(PlannerError, CostsThatAreNotUnderstoodAreRefused) {
  planner::options wanted;
  wanted.costs = "nonsense";
  EXPECT_EQ(planner::open(cuda_, wanted).code(), EINVAL);
}

// A way for another direction would have the CPU read device addresses.
TEST_F(PlannerError, ATableNamesOnlyWaysThatExist) {
  for (const auto way : kDirections)
    for (std::size_t side = 0; side < kSides; ++side)
      for (std::size_t kind = 0; kind < kMethods; ++kind) {
        const auto all = candidates(way, static_cast<other_side>(side));
        const bool exists =
            std::any_of(all.begin(), all.end(), [&](const choice& one) { return one.kind == static_cast<method>(kind); });
        planner::options wanted;
        wanted.costs = header() + curve(way, static_cast<other_side>(side), {static_cast<method>(kind), 1});
        const auto made = planner::open(cuda_, wanted);
        const bool has_side = (way == direction::on_device) == (side >= static_cast<std::size_t>(other_side::same_gpu));
        EXPECT_EQ(made.code(), has_side && exists ? 0 : EINVAL) << wanted.costs;
      }
}

// ---- what is not open ---------------------------------------------------------------------------------------------------

TEST_F(PlannerError, WithoutAMappingDmaCopiesEverything) {
  planner::options wanted;
  wanted.maps.backend = "gdrdrv";  // there is no such device here
  open("", wanted);
  EXPECT_EQ(planner_->keep_hot(0).code(), ENOTSUP);
  for (int round = 0; round < 3; ++round)
    for (const auto way : kDirections)
      for (const auto side : sides_of(way))
        for (const std::size_t bytes : {1u, 1000u, 5000u, 100'000u}) {
          const copy_case one(way, side, bytes, 1, 2);
          auto done = planner_->copy(one.to_transfer());
          ASSERT_TRUE(done) << done.error().message;
          ASSERT_TRUE(one.is_copied());
        }
  guarded_device device(100);
  ASSERT_TRUE(planner_->fill(device.address(), 3, 100));
  EXPECT_EQ(device.get(), bytes_t(100, 3));
  guarded_host host(100);
  const transfer list[] = {{direction::to_host, host.address(), device.address(), 50},
                           {direction::to_host, host.address() + 50, device.address(), 50}};
  ASSERT_TRUE(planner_->copy_list(list));
  EXPECT_EQ(host.get(), bytes_t(100, 3));
  const auto counts = planner_->counts();
  EXPECT_GT(counts.not_mapped, 10u);
  EXPECT_EQ(counts.copies[static_cast<std::size_t>(method::cpu_store)], 0u);
  EXPECT_GT(counts.copies[static_cast<std::size_t>(method::copy_engine)], 10u);
  EXPECT_FALSE(planner_->register_memory(device.address(), 100));
  EXPECT_TRUE(planner_->prepare(0));
}

TEST_F(PlannerError, AMappingThatIsRefusedIsTriedAgainLater) {
  test::counting_io io(default_device_io());
  set_default_device_io_for_tests(&io);
  {
    std::uint64_t refused = 0;
    int step = 0;
    for (bool fired = true; fired; ++step) {
      ASSERT_LT(step, 50);
      open(both_curves(direction::to_device, {method::cpu_store, 1}));
      const copy_case one(direction::to_device, other_side::pageable, 1000);
      io.fail_at(step, EIO);
      ASSERT_TRUE(planner_->copy(one.to_transfer())) << step;
      ASSERT_TRUE(one.is_copied());
      fired = io.fired();
      io.fail_at(-1, 0);
      refused += planner_->counts().not_mapped;
      EXPECT_EQ(planner_->counts().not_mapped + taken(method::cpu_store), 1u);
      planner_->trim();  // forgets the refusal, which otherwise stands for a while
      ASSERT_TRUE(planner_->copy(one.to_transfer()));
      EXPECT_GT(taken(method::cpu_store), 0u) << step;
    }
    EXPECT_GT(refused, 0u);
    planner_.reset();
  }
  set_default_device_io_for_tests(nullptr);
  EXPECT_EQ(io.open_descriptors(), 0);
  EXPECT_EQ(io.mapped_bytes(), 0u);
}

TEST_F(PlannerError, WithoutTheEngineTheNextBestIsTaken) {
  planner::options wanted;
  wanted.use_engine = false;
  open(curve(direction::to_host, other_side::pinned, {method::engine_copy, 1}) +
           curve(direction::to_host, other_side::pinned, {method::cpu_load, 1}, 5),
       wanted);
  for (int i = 0; i < 10; ++i) {
    const copy_case one(direction::to_host, other_side::pinned, 5000);
    ASSERT_TRUE(planner_->copy(one.to_transfer()));
    ASSERT_TRUE(one.is_copied());
  }
  EXPECT_EQ(taken(method::cpu_load), 10u);
  EXPECT_EQ(planner_->counts().engine.launches, 0u);
}

TEST_F(PlannerError, ABusyEngineIsCountedAndPassedBy) {
  open(curve(direction::to_host, other_side::pinned, {method::engine_copy, 1}) +
       curve(direction::to_host, other_side::pinned, {method::cpu_load, 1}, 5));
  auto hot = planner_->keep_hot(0);
  ASSERT_TRUE(hot);
  guarded_device device(20'000);
  guarded_host first(context_of(0), 20'000), second(context_of(0), 20'000);
  const auto data = test::random_bytes(20'000, 1);
  device.set(data);
  const transfer one{direction::to_host, first.address(), device.address(), 20'000};
  const transfer two{direction::to_host, second.address(), device.address(), 20'000};
  // A request keeps its worker until it is asked about: two of them have both workers.
  for (int attempt = 0; attempt < 500 && planner_->counts().engine.all_busy == 0; ++attempt) {
    auto a = planner_->begin(std::span(&one, 1), {});
    auto b = planner_->begin(std::span(&two, 1), {});
    ASSERT_TRUE(a && b);
    const copy_case late(direction::to_host, other_side::pinned, 5000);
    ASSERT_TRUE(planner_->copy(late.to_transfer()));
    ASSERT_TRUE(late.is_copied());
    ASSERT_TRUE(a->wait());
    ASSERT_TRUE(b->wait());
    ASSERT_EQ(first.get(), data);
    ASSERT_EQ(second.get(), data);
  }
  EXPECT_GT(planner_->counts().engine.all_busy, 0u);
  EXPECT_GT(planner_->counts().engine_not_taken, 0u);
}

// ---- processes
// ------------------------------------------------------------------------------------------------------------

TEST_F(PlannerError, AForkedChildIsToldSo) {
  open();
  auto hot = planner_->keep_hot(0);
  guarded_device device(100'000);
  guarded_host host(100'000), pinned(context_of(0), 100'000);
  ASSERT_TRUE(planner_->copy({direction::to_device, device.address(), host.address(), 100'000}));
  auto kept = planner_->register_memory(device.address(), 4096);
  ASSERT_TRUE(kept);
  gate held;
  const transfer list[] = {{direction::to_host, host.address(), device.address(), 100'000},
                           {direction::to_host, pinned.address(), device.address(), 100'000}};
  auto pending = planner_->begin(list, {true, held.stream()});
  ASSERT_TRUE(pending) << pending.error().message;
  const int answer = in_forked_child([&] {
    alarm(20);
    if (planner_->copy(list[0]).code() != EACCES) return 1;
    if (planner_->copy({direction::to_device, device.address(), host.address(), 8}).code() != EACCES) return 2;
    if (planner_->copy_list(list).code() != EACCES) return 3;
    if (planner_->fill(device.address(), 0, 8).code() != EACCES) return 4;
    if (planner_->begin(list, {}).code() != EACCES) return 5;
    if (planner_->prepare(0).code() != EACCES) return 6;
    if (planner_->keep_hot(0).code() != EACCES) return 7;
    if (planner_->register_memory(device.address(), 8).code() != EACCES) return 8;
    if (pending->test().code() != EACCES) return 9;
    { auto mine = *std::move(pending); }
    (void)planner_->counts();
    planner_->trim();
    { auto mine = *std::move(kept); }
    { auto mine = *std::move(hot); }
    planner_.reset();
    return 0;
  });
  EXPECT_EQ(answer, 0);
  held.open();
  EXPECT_TRUE(pending->wait());
  EXPECT_TRUE(planner_->copy({direction::to_device, device.address(), host.address(), 8})) << "the parent goes on";
}

// ---- contexts
// -------------------------------------------------------------------------------------------------------------

// Every way with memory of the current context, whose `hot` engine is started by use alone.
void copy_everything(planner& planner) {
  for (const std::size_t bytes : {8u, 3000u, 20'000u, 100'000u}) {
    for (const auto side : {other_side::pinned, other_side::pageable})
      for (const auto way : {direction::to_device, direction::to_host}) {
        guarded_host host = side == other_side::pinned ? guarded_host(context_of(0), bytes) : guarded_host(bytes);
        test::device_buffer device(bytes);
        const auto data = test::random_bytes(bytes, bytes);
        if (way == direction::to_device) host.set(data);
        else test::set_device_bytes(device.pointer(), data);
        const transfer transfer = way == direction::to_device ? copy::transfer{way, device.pointer(), host.address(), bytes}
                                                              : copy::transfer{way, host.address(), device.pointer(), bytes};
        auto done = planner.copy(transfer);
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_EQ(way == direction::to_device ? test::device_bytes(device.pointer(), bytes) : host.get(), data);
      }
    test::device_buffer one(bytes), two(bytes);
    const auto data = test::random_bytes(bytes, bytes + 1);
    test::set_device_bytes(one.pointer(), data);
    auto done = planner.copy({direction::on_device, two.pointer(), one.pointer(), bytes});
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(test::device_bytes(two.pointer(), bytes), data);
  }
}

TEST_F(PlannerError, ContextsComeAndGoBetweenCopies) {
  open();
  for (int round = 0; round < 3; ++round) {
    own_context own;
    ASSERT_EQ(cuda_.cuCtxPushCurrent_v2(own.handle()), 0);
    for (int i = 0; i < 3; ++i) copy_everything(*planner_);
    cu::device_ptr memory = 0;
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&memory, 100'000), 0);
    cu::context_t popped = nullptr;
    ASSERT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), 0);
    guarded_host host(100'000);
    ASSERT_TRUE(planner_->copy({direction::to_device, memory, host.address(), 100'000}));
    own.destroy();
    for (const std::size_t bytes : {8u, 3000u, 100'000u}) {
      EXPECT_EQ(planner_->copy({direction::to_device, memory, host.address(), bytes}).code(), EINVAL)
          << "the memory went with it";
      EXPECT_EQ(planner_->copy({direction::to_host, host.address(), memory, bytes}).code(), EINVAL);
    }
    copy_everything(*planner_);
  }
}

// Bytes of this process that a fork would not copy, which are those that devices access.
std::size_t unforked_bytes() {
  std::ifstream areas("/proc/self/smaps");
  std::size_t kib = 0, out = 0;
  for (std::string line; std::getline(areas, line);) {
    if (line.starts_with("Rss:")) kib = std::stoul(line.substr(4));
    if (line.starts_with("VmFlags:") && line.find(" dc") != std::string::npos) out += kib * 1024;
  }
  return out;
}

// A service that makes contexts again and again: the ring of 16 MiB goes with each.
TEST_F(PlannerError, DestroyedContextsKeepNoRings) {
  constexpr std::size_t kBytes = 3u << 20;
  for (const method kind : {method::bounce, method::dma_ring}) {
    open("", kind == method::bounce ? planner::options{} : by_channels());
    std::size_t first = 0;
    for (int round = 0; round < 8; ++round) {
      own_context own;
      ASSERT_EQ(cuda_.cuCtxPushCurrent_v2(own.handle()), 0);
      cu::device_ptr memory = 0;
      ASSERT_EQ(cuda_.cuMemAlloc_v2(&memory, kBytes), 0);
      cu::context_t popped = nullptr;
      ASSERT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), 0);
      guarded_host host(kBytes);
      const status done = copy_by_now({kind, 2}, {direction::to_device, memory, host.address(), kBytes});
      ASSERT_TRUE(done) << done.error().message;
      own.destroy();
      if (round == 1) first = unforked_bytes();
    }
    EXPECT_LT(unforked_bytes(), first + (std::size_t{24} << 20));
    planner_->trim();
    EXPECT_LT(unforked_bytes(), first) << "not even that of the last one";
  }
}

// cudaDeviceReset: the primary context is another one behind the same handle.
TEST_F(PlannerError, AResetPrimaryContextIsANewOne) {
  const auto reset = reinterpret_cast<cu::result_t (*)(int)>(dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxReset_v2"));
  ASSERT_NE(reset, nullptr);
  open();
  const auto launches = [&] { return planner_->counts().engine.launches; };
  for (int round = 0; round < 3; ++round) {
    {
      const test::current_device second(1);
      auto hot = planner_->keep_hot(1);
      ASSERT_TRUE(hot) << hot.error().message;
      copy_everything(*planner_);
      EXPECT_GT(launches(), static_cast<std::uint64_t>(round)) << "of all contexts that ever were";
    }
    ASSERT_EQ(reset(1), 0);
  }
}

TEST_F(PlannerError, AContextThatEndsUnderACopyIsAnErrorOrACopy) {
  open();
  for (int round = 0; round < 6; ++round) {
    own_context own;
    cu::device_ptr memory = 0;
    ASSERT_EQ(cuda_.cuCtxPushCurrent_v2(own.handle()), 0);
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&memory, 300'000), 0);
    cu::context_t popped = nullptr;
    ASSERT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), 0);
    std::atomic<int> copies{0};
    std::thread copier([&] {
      guarded_host host(300'000), pinned(context_of(0), 300'000);
      // Sizes that no CPU touches: a mapping outlives its memory, but what is looked at while it goes may be either.
      for (status done; done; ++copies) {
        done = planner_->copy({direction::to_host, copies % 2 == 0 ? host.address() : pinned.address(), memory, 300'000});
        if (!done) { EXPECT_FALSE(done.error().message.empty()); }
      }
    });
    while (copies < round) sched_yield();
    own.destroy();
    copier.join();  // would hang otherwise
  }
  copy_everything(*planner_);
}

}  // namespace
}  // namespace pl::copy
