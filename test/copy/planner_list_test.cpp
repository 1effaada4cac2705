// SPDX-License-Identifier: Apache-2.0
// Lists of copies, and registered memory.
#include <atomic>
#include <thread>

#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

class PlannerList : public planner_fixture {
 protected:
  // Pieces of random sizes between `device` and `host`, none over another, in a random order.
  std::vector<transfer> pieces(direction way, std::uint64_t device, std::uint64_t host, std::size_t all_bytes,
                               std::size_t most_bytes) {
    std::vector<transfer> out;
    for (std::size_t offset = 0; offset < all_bytes;) {
      const std::size_t bytes = std::min(all_bytes - offset, next(most_bytes) + 1);
      if (way == direction::to_device) out.push_back({way, device + offset, host + offset, bytes});
      else out.push_back({way, host + offset, device + offset, bytes});
      offset += bytes;
    }
    for (std::size_t i = out.size() - 1; i > 0; --i) std::swap(out[i], out[next(i + 1)]);
    return out;
  }
  std::size_t next(std::size_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state_ >> 33) % below;
  }
  std::uint64_t state_ = 99;
};

TEST_F(PlannerList, NothingAndNothingAtAll) {
  open();
  EXPECT_TRUE(planner_->copy_list({}));
  const transfer none[] = {
      {direction::to_device, 1, 1, 0}, {direction::to_host, 1, 1, 0}, {direction::on_device, 1, 1, 7, 0}};
  EXPECT_TRUE(planner_->copy_list(none));
  EXPECT_TRUE(planner_->copy_list(std::span(none, 1)));
}

TEST_F(PlannerList, ManyShortPiecesBothWays) {
  open();
  constexpr std::size_t kBytes = 100'000;
  for (const bool is_hot : {false, true})
    for (const bool is_pinned : {false, true}) {
      std::optional<gpu_engine::hold> hot;
      if (is_hot) {
        auto held = planner_->keep_hot(0);
        ASSERT_TRUE(held);
        hot.emplace(*std::move(held));
        usleep(5000);
      }
      guarded_device device(kBytes, 1);
      auto host =
          is_pinned ? std::make_unique<guarded_host>(context_of(0), kBytes, 1) : std::make_unique<guarded_host>(kBytes, 1);
      const auto data = test::random_bytes(kBytes, 5);
      host->set(data);
      auto done = planner_->copy_list(pieces(direction::to_device, device.address(), host->address(), kBytes, 300));
      ASSERT_TRUE(done) << done.error().message;
      ASSERT_EQ(device.get(), data);
      const auto lists = planner_->counts().engine.lists;
      for (int attempt = 0; attempt < 100; ++attempt) {  // the engine may be between two leases
        host->set(bytes_t(kBytes, 0));
        done = planner_->copy_list(pieces(direction::to_host, device.address(), host->address(), kBytes, 300));
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_EQ(host->get(), data);
        if (!is_hot || planner_->counts().engine.lists > lists) break;
      }
    }
  EXPECT_GT(planner_->counts().engine.lists, 0u) << "the hot engine gathered";
}

TEST_F(PlannerList, AllSizesAndDirectionsMixed) {
  open();
  auto hot = planner_->keep_hot(0);
  constexpr std::size_t kBytes = 400'000;
  for (int round = 0; round < 3; ++round) {
    guarded_device first(kBytes), out(kBytes), second(kBytes), far(kBytes, 0, 1);
    guarded_host source(kBytes), returned(context_of(0), kBytes);
    const auto data = test::random_bytes(kBytes, static_cast<std::uint64_t>(round));
    const auto other = test::random_bytes(kBytes, static_cast<std::uint64_t>(round) + 50);
    source.set(data);
    out.set(other);
    std::vector<transfer> list = pieces(direction::to_device, first.address(), source.address(), kBytes, 50'000);
    for (const auto& one : pieces(direction::to_host, out.address(), returned.address(), kBytes, 20'000))
      list.push_back(one);
    list.push_back({direction::on_device, second.address(), out.address(), kBytes});
    list.push_back({direction::on_device, far.address(), out.address(), 1000, 100, 2000, 3000});
    list.push_back({direction::to_host, 1, 1, 0});
    for (std::size_t i = list.size() - 1; i > 0; --i) std::swap(list[i], list[next(i + 1)]);
    auto done = planner_->copy_list(list);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(first.get(), data);
    EXPECT_EQ(returned.get(), other);
    EXPECT_EQ(second.get(), other);
    const auto rows = far.get();
    for (std::size_t row = 0; row < 100; ++row)
      ASSERT_EQ(
          bytes_t(rows.begin() + static_cast<long>(row * 2000), rows.begin() + static_cast<long>(row * 2000 + 1000)),
          bytes_t(other.begin() + static_cast<long>(row * 3000), other.begin() + static_cast<long>(row * 3000 + 1000)));
  }
}

TEST_F(PlannerList, PiecesOfManyAllocationsAndBothDevices) {
  open();
  auto hot = planner_->keep_hot(0);
  std::vector<std::unique_ptr<guarded_device>> devices;
  guarded_host host(200 * 64);
  const auto data = test::random_bytes(200 * 64, 8);
  host.set(data);
  std::vector<transfer> list;
  for (std::size_t i = 0; i < 200; ++i) {
    if (i % 5 == 0) devices.push_back(std::make_unique<guarded_device>(5 * 64, i % 3, i % 2 == 0 ? 0 : 1));
    list.push_back({direction::to_device, devices.back()->address() + i % 5 * 64, host.address() + i * 64, 64});
  }
  auto done = planner_->copy_list(list);
  ASSERT_TRUE(done) << done.error().message;
  for (auto& one : list) std::swap(one.dst, one.src), one.way = direction::to_host;
  host.set(bytes_t(200 * 64, 0));
  done = planner_->copy_list(list);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(host.get(), data);
  for (const auto& one : devices) (void)one->get();  // canaries
}

TEST_F(PlannerList, ABadPieceIsAnErrorAndNoCrash) {
  open();
  guarded_device device(1000);
  guarded_host host(1000), pinned(context_of(0), 20'000);
  std::vector<transfer> list;
  const auto refuse = [&](const transfer& bad, const char* about) {
    for (const std::size_t place : {0u, 3u}) {
      auto extended = list;
      extended.insert(extended.begin() + static_cast<long>(place), bad);
      auto done = planner_->copy_list(extended);
      EXPECT_EQ(done.code(), EINVAL) << about;
    }
  };
  for (std::size_t i = 0; i < 5; ++i)
    list.push_back({direction::to_device, device.address() + i * 10, host.address() + i * 10, 10});
  refuse({direction::to_device, device.address() + 100, 0, 10}, "null source");
  refuse({direction::to_device, 0, host.address(), 10}, "null destination");
  refuse({direction::to_device, device.address() + 100, host.address(), SIZE_MAX}, "a size beyond everything");
  refuse({direction::to_device, device.address(), host.address(), 2 << 20}, "beyond the allocation");
  for (auto& one : list) std::swap(one.dst, one.src), one.way = direction::to_host;
  refuse({direction::to_host, 0, device.address(), 10}, "null destination");
  refuse({direction::to_host, host.address(), 0, 10}, "null source");
  refuse({direction::to_host, host.address(), host.address() + 500, 10}, "host memory as a source on the device");
  (void)device.get(), (void)host.get();
}

// ---- registered memory ------------------------------------------------------------------------------------------------

TEST_F(PlannerList, RegisteredMemoryIsNotLookedUp) {
  open();
  guarded_device device(8192, 5);
  guarded_host host(8192);
  const auto data = test::random_bytes(8192, 3);
  {
    auto kept = planner_->register_memory(device.address(), 8192);
    ASSERT_TRUE(kept) << kept.error().message;
    const auto before = planner_->counts().maps;
    for (const std::size_t bytes : {1u, 8u, 63u, 64u, 1000u}) {
      host.set(data);
      ASSERT_TRUE(planner_->copy({direction::to_device, device.address() + 7, host.address(), bytes}));
      host.set(bytes_t(8192, 0));
      ASSERT_TRUE(planner_->copy({direction::to_host, host.address(), device.address() + 7, bytes}));
      ASSERT_EQ(std::memcmp(host.data(), data.data(), bytes), 0) << bytes;
      ASSERT_EQ(test::device_bytes(device.address() + 7, bytes),
                bytes_t(data.begin(), data.begin() + static_cast<long>(bytes)));
    }
    ASSERT_TRUE(planner_->fill(device.address(), 0x11, 8192));
    EXPECT_EQ(device.get(), bytes_t(8192, 0x11));
    const auto after = planner_->counts().maps;
    EXPECT_EQ(after.hits, before.hits);
    EXPECT_EQ(after.misses, before.misses);
    // What goes beyond the registration is looked up, and refused if it leaves the allocation.
    ASSERT_TRUE(planner_->copy({direction::to_device, device.address() + 8190, host.address(), 4}));
    EXPECT_EQ(planner_->counts().maps.misses, before.misses + 1);
    EXPECT_EQ(planner_->copy({direction::to_device, device.address(), 0, 8}).code(), EINVAL);
  }
  const auto before = planner_->counts().maps;
  ASSERT_TRUE(planner_->copy({direction::to_device, device.address(), host.address(), 8}));
  EXPECT_GT(planner_->counts().maps.hits + planner_->counts().maps.misses, before.hits + before.misses) << "ended";
}

TEST_F(PlannerList, RegistrationsMoveAndEnd) {
  open();
  guarded_device device(4096);
  guarded_host host(64);
  const auto is_registered = [&] {
    const auto before = planner_->counts().maps;
    EXPECT_TRUE(planner_->copy({direction::to_device, device.address(), host.address(), 8}));
    const auto after = planner_->counts().maps;
    return before.hits == after.hits && before.misses == after.misses;
  };
  auto kept = planner_->register_memory(device.address(), 4096);
  ASSERT_TRUE(kept);
  planner::registration moved = *std::move(kept);
  EXPECT_TRUE(is_registered());
  planner::registration assigned;
  assigned = std::move(moved);
  EXPECT_TRUE(is_registered());
  assigned = {};
  EXPECT_FALSE(is_registered());
}

TEST_F(PlannerList, RegistrationsThatCannotBe) {
  open();
  guarded_device device(4096);
  guarded_host host(4096);
  EXPECT_FALSE(planner_->register_memory(device.address(), 0));
  EXPECT_FALSE(planner_->register_memory(device.address(), SIZE_MAX));
  EXPECT_FALSE(planner_->register_memory(0, 4096));
  EXPECT_FALSE(planner_->register_memory(host.address(), 4096));
  EXPECT_FALSE(planner_->register_memory(device.address(), 64u << 20));
  std::vector<planner::registration> all;
  for (int i = 0; i < 64; ++i) {
    auto one = planner_->register_memory(device.address(), 4096);
    ASSERT_TRUE(one) << i << ": " << one.error().message;
    all.push_back(*std::move(one));
  }
  EXPECT_EQ(planner_->register_memory(device.address(), 4096).code(), ENOSPC);
  all.erase(all.begin() + 20);
  auto again = planner_->register_memory(device.address(), 4096);
  EXPECT_TRUE(again) << "its place is free";
}

// A slot that is given to another range while a copy of a third one looks through the slots must not catch that copy.
TEST_F(PlannerList, ComingAndGoingRegistrationsDoNotDisturbOtherCopies) {
  open();
  guarded_device low(4096), mine(4096), high(4096);
  std::atomic<bool> stop{false};
  std::thread comes_and_goes([&] {
    const test::current_device current(0);
    for (int i = 0; !stop; ++i)
      if (auto kept = planner_->register_memory(i % 2 == 0 ? low.address() : high.address(), 4096); !kept) ADD_FAILURE();
  });
  auto kept = planner_->register_memory(mine.address() + 2048, 2048);
  ASSERT_TRUE(kept);
  for (unsigned i = 0; i < 3000; ++i) {
    const std::uint64_t pattern = i;
    std::uint64_t back = 0;
    const std::uint64_t address = mine.address() + i % 2 * 2048 + i % 100 * 8;
    ASSERT_TRUE(planner_->copy({direction::to_device, address, address_of(&pattern), 8}));
    ASSERT_TRUE(planner_->copy({direction::to_host, address_of(&back), address, 8}));
    ASSERT_EQ(back, pattern);
  }
  stop = true;
  comes_and_goes.join();
  EXPECT_EQ(low.get(), bytes_t(4096, kCanary));
  EXPECT_EQ(high.get(), bytes_t(4096, kCanary));
}

}  // namespace
}  // namespace pl::copy
