// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/halo_ways.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/batch_events.hpp"
#include "tools/triggered/captured_work.hpp"
#include "tools/triggered/queue_when_room.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kHaloTag = 0x57e4;

class normal_halo final : public halo_way {
 public:
  normal_halo(station& at, const block_place& place) : at_(at), place_(place), by_(at.messages()) {}

  void advance(int count, const halo_period& period) override {
    for (int i = 0; i < count; ++i) period();
  }
  void exchange(const halo& what) override {
    at_.synchronize();
    std::vector<link::request> under_way;
    for (int i = 0; i < kSides; ++i) {
      const auto of = static_cast<side>(i);
      const int peer = place_.neighbour(of);
      if (peer < 0) continue;
      under_way.push_back(by_.irecv(peer, link::device_buffer(at_.in() + what.offset(of), what.bytes), kHaloTag));
      under_way.push_back(by_.isend(peer, link::device_buffer(at_.out() + what.offset(of), what.bytes), kHaloTag));
    }
    for (auto& one : under_way) tools::must(one.wait());
  }
  void finish() override { at_.synchronize(); }

 private:
  station& at_;
  const block_place place_;
  link::messenger& by_;
};

class stream_halo : public halo_way {
 public:
  stream_halo(station& at, const block_place& place, arm which) : at_(at), batches_(at, stream::run_mode::performance) {
    stream::channel_options options;
    const bool is_proxy = which == arm::proxy || which == arm::proxy_kernel;
    options.executor = is_proxy ? stream::executor_kind::proxy : stream::executor_kind::peer;
    if (which == arm::peer_kernel || which == arm::proxy_kernel || which == arm::graph_kernel)
      options.wait = stream::wait_way::kernel;
    const auto id = at.new_channel_id();
    // In an order that cannot make ranks wait for each other in a ring: by rank.
    std::vector<std::pair<int, side>> order;
    for (int i = 0; i < kSides; ++i)
      if (const int peer = place.neighbour(static_cast<side>(i)); peer >= 0) order.emplace_back(peer, static_cast<side>(i));
    std::sort(order.begin(), order.end());
    for (const auto& [peer, of] : order) ends_.push_back({of, peer, at.connect(peer, id, options)});
  }

  void advance(int count, const halo_period& period) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    queue(count, period);
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void exchange(const halo& what) override {
    for (const auto& each : ends_)
      tools::must(queue_when_room([&] {
        return each.to->put_signal(at_.on(), at_.window_of(each.peer), what.offset(opposite(each.of)),
                                   at_.out() + what.offset(each.of), what.bytes);
      }));
    for (const auto& each : ends_) tools::must(queue_when_room([&] { return each.to->wait_signal(at_.on()); }));
  }

  void finish() override {
    batches_.wait_for_all();
    for (const auto& each : ends_)
      if (const auto now = each.to->state(); now.error != 0)
        throw tools::tool_failure(format("the channel to rank %d broke: %s", each.peer, now.why.c_str()));
  }

 protected:
  virtual void queue(int count, const halo_period& period) {
    for (int i = 0; i < count; ++i) period();
  }
  station& at_;

 private:
  struct end {
    side of;
    int peer;
    std::unique_ptr<stream::channel> to;
  };
  batch_events batches_;
  std::vector<end> ends_;
};

// A batch of periods captured once: one call of the driver for all of it.
class graph_halo final : public stream_halo {
 public:
  graph_halo(station& at, const block_place& place) : stream_halo(at, place, arm::graph_kernel) {}
  ~graph_halo() override { forget(); }

  void prepare(int count, const halo_period& period) override {
    if (graphs_.count(count) != 0) return;
    graphs_.emplace(count, tools::must(captured_work::make(at_, [&]() -> status {
                      for (int i = 0; i < count; ++i) period();
                      return {};
                    })));
  }
  void forget() override { graphs_.clear(); }

 private:
  void queue(int count, const halo_period&) override { graphs_.at(count).launch(); }
  std::map<int, captured_work> graphs_;  // by the number of periods
};

}  // namespace

std::unique_ptr<halo_way> make_halo_way(station& at, const block_place& place, arm which) {
  if (which == arm::normal) return std::make_unique<normal_halo>(at, place);
  if (which == arm::graph_kernel) return std::make_unique<graph_halo>(at, place);
  if (which == arm::hostfn || which == arm::graph)
    throw tools::tool_failure(format("--arms: stencil and multigrid have no form for \"%s\"", to_string(which)));
  return std::make_unique<stream_halo>(at, place, which);
}

}  // namespace pl::async
