// SPDX-License-Identifier: Apache-2.0
// A planner over the simulated GPUs, and one copy of any kind with all that it must not touch.
#pragma once

#include <optional>
#include <string>

#include "copy/planner.hpp"
#include "test/copy/copy_fixture.hpp"

namespace pl::copy {

constexpr direction kDirections[] = {direction::to_device, direction::to_host, direction::on_device};

inline std::vector<other_side> sides_of(direction way) {
  if (way == direction::on_device) return {other_side::same_gpu, other_side::peer_gpu};
  return {other_side::pinned, other_side::pageable};
}

inline std::string header() { return "peerlane-calibration/1\n"; }
// A line by which this way is the cheapest for all sizes that it can do.
inline std::string curve(direction way, other_side side, const choice& option, unsigned ns = 1) {
  return std::string("curve ") + name_of(way) + " " + name_of(side) + " " + name_of(option.kind) + " " +
         std::to_string(option.width) + " 1:" + std::to_string(ns) + "\n";
}
// The same for both kinds of host memory.
inline std::string both_curves(direction way, const choice& option, unsigned ns = 1) {
  return curve(way, other_side::pinned, option, ns) + curve(way, other_side::pageable, option, ns);
}

// Source and destination of copies, with canaries around the latter.
class copy_case {
 public:
  copy_case(direction way, other_side side, std::size_t bytes, std::size_t dst_skew = 0, std::size_t src_skew = 0)
      : way_(way), bytes_(bytes), data_(test::random_bytes(bytes, bytes * 31 + dst_skew * 7 + src_skew)) {
    const auto host = [&](std::size_t skew) {
      if (side == other_side::pinned) host_.emplace(context_of(0), bytes, skew);
      else host_.emplace(bytes, skew);
    };
    if (way == direction::to_device) {
      host(src_skew);
      dst_.emplace(bytes, dst_skew);
      host_->set(data_);
    } else if (way == direction::to_host) {
      host(dst_skew);
      src_.emplace(bytes, src_skew);
      src_->set(data_);
    } else {
      dst_.emplace(bytes, dst_skew, side == other_side::peer_gpu ? 1 : 0);
      src_.emplace(bytes, src_skew);
      src_->set(data_);
    }
  }
  transfer to_transfer() const {
    if (way_ == direction::to_device) return {way_, dst_->address(), host_->address(), bytes_};
    if (way_ == direction::to_host) return {way_, host_->address(), src_->address(), bytes_};
    return {way_, dst_->address(), src_->address(), bytes_};
  }
  bool is_copied() const { return got() == data_; }
  bool is_untouched() const { return got() == bytes_t(bytes_, kCanary); }

 private:
  bytes_t got() const { return way_ == direction::to_host ? host_->get() : dst_->get(); }
  const direction way_;
  const std::size_t bytes_;
  const bytes_t data_;
  std::optional<guarded_host> host_;
  std::optional<guarded_device> dst_, src_;
};

class planner_fixture : public testing::Test {
 protected:
  void open(const std::string& curves = "", planner::options wanted = {}) {
    planner_.reset();
    wanted.costs = curves.empty() ? cost_table::built_in().text() : header() + curves;
    if (wanted.threads == 0) wanted.threads = 2;
    auto made = planner::open(cuda_, wanted);
    ASSERT_TRUE(made) << made.error().message;
    planner_ = *std::move(made);
  }
  // Channels for all that they can do, and no resident copy kernel.
  static planner::options by_channels() {
    planner::options wanted;
    wanted.channels = channel_use::always;
    wanted.use_engine = false;
    return wanted;
  }
  void open_channels(const std::string& curves = "") {
    open(curves, by_channels());
    ASSERT_TRUE(planner_->prepare(0));
  }
  std::uint64_t taken(method kind) const { return planner_->counts().copies[static_cast<std::size_t>(kind)]; }
  // The GPU engine may be between two leases at any moment.
  status copy_by_now(const choice& option, const transfer& transfer) {
    status done;
    for (int attempt = 0; attempt < 2000; ++attempt) {
      done = planner_->copy_by(option, transfer);
      if (done.code() != EAGAIN) break;
      usleep(200);
    }
    return done;
  }
  // copy() until it went by this way, which the table must make the cheapest.
  void copy_until(method kind, const copy_case& one) {
    const auto before = taken(kind);
    for (int attempt = 0; attempt < 2000 && taken(kind) == before; ++attempt) {
      auto done = planner_->copy(one.to_transfer());
      ASSERT_TRUE(done) << done.error().message;
      ASSERT_TRUE(one.is_copied());
      if (taken(kind) == before) usleep(200);
    }
    EXPECT_GT(taken(kind), before) << name_of(kind) << " was never taken";
  }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  std::unique_ptr<planner> planner_;
};

}  // namespace pl::copy
