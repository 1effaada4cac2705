// SPDX-License-Identifier: Apache-2.0
// Every way to copy with every kind of memory, size and alignment: by force, and chosen by a table that prefers it.
#include "copy/gpu_state.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

class PlannerWays : public planner_fixture {
 protected:
  // Channels are not used on simulated GPUs unless that is asked for.
  void open_for(method kind, const std::string& curves = "") {
    planner::options wanted;
    wanted.channels = needed_executor(kind) == executor::channel ? channel_use::always : channel_use::never;
    open(curves, wanted);
  }
};

bool is_for(direction way, other_side side, method kind, std::size_t bytes) {
  switch (kind) {
    case method::cpu_store:
      return way == direction::to_device;
    case method::cpu_load:
      return way == direction::to_host && bytes <= 256u << 10;
    case method::cpu_relay:
      return way == direction::on_device && bytes <= 64u << 10;
    case method::engine_low_latency:
      return way == direction::to_host && bytes <= kLowLatencyBytes;
    case method::engine_copy:
      return side == other_side::pinned || side == other_side::same_gpu;
    case method::engine_bounce:
      return way == direction::to_host && bytes <= 1u << 20;
    case method::copy_engine:
      return true;
    case method::bounce:
      return way != direction::on_device;
    case method::registered:
      return way != direction::on_device && side == other_side::pageable;
    case method::dma_channel:
      return side != other_side::pageable;
    case method::dma_bounce:
      return way == direction::to_host && bytes <= 1u << 20;
    case method::dma_ring:
      return way != direction::on_device;
  }
  return false;
}

class EveryWay : public PlannerWays, public testing::WithParamInterface<std::size_t> {};

TEST_P(EveryWay, CopiesWhatItIsForAndRefusesTheRest) {
  const auto kind = static_cast<method>(GetParam());
  open_for(kind);
  auto hot = planner_->keep_hot(0);
  ASSERT_TRUE(hot) << hot.error().message;
  struct shape {
    std::size_t bytes, dst_skew, src_skew;
  };
  const shape shapes[] = {{1, 0, 0},    {2, 1, 0},    {8, 0, 0},      {9, 3, 5},       {64, 0, 1},     {255, 7, 0},
                          {4096, 0, 0}, {4097, 1, 2}, {32768, 0, 15}, {65'537, 63, 1}, {130'001, 5, 3}};
  std::uint64_t done_now = 0;
  for (const auto way : kDirections)
    for (const auto side : sides_of(way))
      for (const auto& [bytes, dst_skew, src_skew] : shapes) {
        const copy_case one(way, side, bytes, dst_skew, src_skew);
        const choice wanted{kind, static_cast<std::uint8_t>(bytes > 10'000 ? 2 : 1)};
        auto done = copy_by_now(wanted, one.to_transfer());
        const auto about = std::string(name_of(way)) + " " + name_of(side) + " " + std::to_string(bytes);
        if (is_for(way, side, kind, bytes)) {
          ASSERT_TRUE(done) << about << ": " << done.error().message;
          ASSERT_TRUE(one.is_copied()) << about;
          ++done_now;
        } else {
          ASSERT_FALSE(done) << about;
          EXPECT_TRUE(done.code() == ENOTSUP ||
                      (kind == method::registered && (done.code() == EBUSY || done.code() == EINVAL)))
              << about << ": " << done.error().message;
          EXPECT_TRUE(one.is_untouched()) << about;
        }
      }
  EXPECT_EQ(taken(kind), done_now);
}
INSTANTIATE_TEST_SUITE_P(methods, EveryWay, testing::Range(std::size_t{0}, kMethods),
                         [](const auto& now) { return std::string(name_of(static_cast<method>(now.param))); });

class EveryDirection : public PlannerWays, public testing::WithParamInterface<direction> {};

TEST_P(EveryDirection, ACopyGoesTheWayThatCostsLeast) {
  const auto way = GetParam();
  for (const auto side : sides_of(way))
    for (const auto& option : candidates(way, side)) {
      open_for(option.kind, curve(way, side, option));
      auto hot = planner_->keep_hot(0);
      ASSERT_TRUE(hot);
      const auto limits = limits_of(way, option);
      const auto bytes = static_cast<std::size_t>(std::clamp<std::uint64_t>(20'001, limits.least, limits.most));
      SCOPED_TRACE(std::string(name_of(side)) + " " + to_text(option));
      copy_until(option.kind, copy_case(way, side, bytes, 1, 2));
      EXPECT_EQ(planner_->counts().bytes[static_cast<std::size_t>(option.kind)], bytes * taken(option.kind));
    }
}
INSTANTIATE_TEST_SUITE_P(directions, EveryDirection, testing::ValuesIn(kDirections),
                         [](const auto& now) { return std::string(name_of(now.param)); });

TEST_F(PlannerWays, TheBuiltInTableCopiesAllSizes) {
  open();
  auto hot = planner_->keep_hot(0);
  std::size_t skew = 0;
  for (const auto way : kDirections)
    for (const auto side : sides_of(way))
      for (const std::size_t bytes : {1u, 100u, 1500u, 5000u, 17'000u, 70'000u, 300'000u}) {
        ++skew;
        const copy_case one(way, side, bytes, skew % 17, skew % 5);
        auto done = planner_->copy(one.to_transfer());
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << name_of(side) << " " << bytes;
      }
}

TEST_F(PlannerWays, NothingIsCopiedWithoutBytes) {
  open();
  EXPECT_TRUE(planner_->copy({direction::to_device, 1, 1, 0}));
  EXPECT_TRUE(planner_->copy({direction::to_device, 1, 1, 5, 0}));
  EXPECT_TRUE(planner_->copy_by({method::cpu_store, 1}, {direction::to_device, 0, 0, 0}));
  EXPECT_TRUE(planner_->fill(0, 1, 0));
}

// ---- rows -----------------------------------------------------------------------------------------------------------

struct rows_case {
  std::size_t row_bytes, rows, dst_pitch, src_pitch;
};

// Rows from and to random memory; what lies between the rows of the destination must stay.
class rows_copy {
 public:
  rows_copy(direction way, bool is_pinned, const rows_case& shape) : way_(way), shape_(shape) {
    const std::size_t dst_bytes = (shape.rows - 1) * shape.dst_pitch + shape.row_bytes;
    const std::size_t src_bytes = (shape.rows - 1) * shape.src_pitch + shape.row_bytes;
    const auto source = test::random_bytes(src_bytes, 17);
    expected_.assign(dst_bytes, kCanary);
    for (std::size_t row = 0; row < shape.rows; ++row)
      std::copy_n(source.begin() + static_cast<long>(row * shape.src_pitch), shape.row_bytes,
                  expected_.begin() + static_cast<long>(row * shape.dst_pitch));
    const std::size_t host_bytes = way == direction::to_host ? dst_bytes : src_bytes;
    if (way != direction::on_device && is_pinned) host_.emplace(context_of(0), host_bytes, 1);
    else if (way != direction::on_device) host_.emplace(host_bytes, 1);
    if (way != direction::to_host) dst_.emplace(dst_bytes, 3);
    if (way != direction::to_device) {
      src_.emplace(src_bytes, 5);
      src_->set(source);
    } else {
      host_->set(source);
    }
  }
  transfer to_transfer() const {
    return {way_,
            way_ == direction::to_host ? host_->address() : dst_->address(),
            way_ == direction::to_device ? host_->address() : src_->address(),
            shape_.row_bytes,
            shape_.rows,
            shape_.dst_pitch,
            shape_.src_pitch};
  }
  bool is_copied() const { return (way_ == direction::to_host ? host_->get() : dst_->get()) == expected_; }

 private:
  const direction way_;
  const rows_case shape_;
  bytes_t expected_;
  std::optional<guarded_host> host_;
  std::optional<guarded_device> dst_, src_;
};

constexpr rows_case kRows[] = {{1, 2, 1, 3}, {37, 50, 101, 37}, {513, 150, 777, 1000}};

TEST_F(PlannerWays, RowsByEveryWay) {
  open_for(method::dma_channel);
  auto hot = planner_->keep_hot(0);
  ASSERT_TRUE(hot);
  for (const auto way : kDirections)
    for (const bool is_pinned : {false, true})
      for (const auto& shape : kRows)
        for (std::size_t i = 0; i < kMethods; ++i) {
          const auto kind = static_cast<method>(i);
          const rows_copy one(way, is_pinned, shape);
          const auto about = std::string(name_of(way)) + " " + name_of(kind) + " " + std::to_string(shape.row_bytes);
          auto done = copy_by_now({kind, 2}, one.to_transfer());
          if (done) ASSERT_TRUE(one.is_copied()) << about;
          else ASSERT_TRUE(done.code() == ENOTSUP || kind == method::registered) << about << ": " << done.error().message;
          if (kind == method::copy_engine) { ASSERT_TRUE(done) << about << done.error().message; }
          if (kind == method::cpu_store && way == direction::to_device) { ASSERT_TRUE(done) << about; }
          if (kind == method::cpu_load && way == direction::to_host) { ASSERT_TRUE(done) << about; }
          if (kind == method::engine_copy && is_pinned) { ASSERT_TRUE(done) << about << done.error().message; }
          if (kind == method::engine_bounce && way == direction::to_host) { ASSERT_TRUE(done) << about; }
          if (kind == method::dma_channel && (is_pinned || way == direction::on_device)) { ASSERT_TRUE(done) << about; }
          if (kind == method::dma_bounce && way == direction::to_host) { ASSERT_TRUE(done) << about; }
        }
}

TEST_F(PlannerWays, RowsByChoice) {
  open();
  for (const bool is_hot : {false, true}) {
    std::optional<gpu_engine::hold> hot;
    if (is_hot) {
      auto held = planner_->keep_hot(0);
      ASSERT_TRUE(held);
      hot.emplace(*std::move(held));
    }
    for (const auto way : kDirections)
      for (const bool is_pinned : {false, true})
        for (const auto& shape : kRows) {
          const rows_copy one(way, is_pinned, shape);
          auto done = planner_->copy(one.to_transfer());
          ASSERT_TRUE(done) << done.error().message;
          ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << shape.row_bytes;
        }
  }
  EXPECT_GT(taken(method::cpu_store), 0u);
  EXPECT_GT(taken(method::cpu_load), 0u);
  EXPECT_GT(taken(method::copy_engine), 0u);
}

TEST_F(PlannerWays, RowsWithoutGapsAreOneCopy) {
  open(curve(direction::to_host, other_side::pageable, {method::bounce, 1}));
  const rows_copy one(direction::to_host, false, {1000, 100, 1000, 1000});
  ASSERT_TRUE(planner_->copy(one.to_transfer()));
  EXPECT_TRUE(one.is_copied());
  EXPECT_EQ(taken(method::bounce), 1u);
}

// ---- fill -----------------------------------------------------------------------------------------------------------

TEST_F(PlannerWays, FillsByStoresAndByTheCopyEngine) {
  for (const auto kind : {method::cpu_store, method::copy_engine}) {
    open(both_curves(direction::to_device, {kind, 1}));
    for (const std::size_t bytes : {1u, 7u, 4096u, 70'001u}) {
      guarded_device device(bytes, 3);
      auto done = planner_->fill(device.address(), 0x5A, bytes);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(device.get(), bytes_t(bytes, 0x5A));
    }
    EXPECT_EQ(taken(kind), 4u);
  }
}

TEST(StagingArea, LendsEachPieceOnce) {
  const test::current_device current(0);
  staging_area area;
  ASSERT_TRUE(area.open(context_of(0)));
  std::vector<staging_area::chunk_lease> all;
  for (unsigned i = 0; i < staging_area::kPieces; ++i) {
    all.push_back(area.borrow());
    ASSERT_TRUE(all.back());
    EXPECT_EQ(address_of(all[i].data()) - address_of(all[0].data()), i * staging_area::kPieceBytes);
  }
  EXPECT_FALSE(area.borrow());
  const auto* freed = all.back().data();
  all.pop_back();
  {
    auto again = area.borrow();
    ASSERT_TRUE(again);
    EXPECT_EQ(again.data(), freed);
    again.forfeit();  // somebody may still write there
  }
  EXPECT_FALSE(area.borrow());
}

}  // namespace
}  // namespace pl::copy
