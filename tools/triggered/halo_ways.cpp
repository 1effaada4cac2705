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
#include "tools/triggered/device_halo.hpp"
#include "tools/triggered/queue_when_room.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kHaloTag = 0x57e4;

class normal_halo final : public halo_method {
 public:
  normal_halo(bench_rank& session, const block_place& place)
      : session_(session), place_(place), messages_(session.messages()) {}

  void advance(int count, const halo_period& period) override {
    for (int i = 0; i < count; ++i) period();
  }
  void exchange(const halo& edges) override {
    session_.synchronize();
    std::vector<messaging::request> in_flight;
    for (int i = 0; i < kSides; ++i) {
      const auto direction = static_cast<side>(i);
      const int peer = place_.neighbour(direction);
      if (peer < 0) continue;
      in_flight.push_back(messages_.irecv(
          peer, messaging::device_buffer(session_.receive_buffer() + edges.offset(direction), edges.bytes), kHaloTag));
      in_flight.push_back(messages_.isend(
          peer, messaging::device_buffer(session_.send_buffer() + edges.offset(direction), edges.bytes), kHaloTag));
    }
    for (auto& one : in_flight) tools::must(one.wait());
  }
  void finish() override { session_.synchronize(); }

 private:
  bench_rank& session_;
  const block_place place_;
  messaging::messenger& messages_;
};

class stream_halo : public halo_method {
 public:
  stream_halo(bench_rank& session, const block_place& place, arm kind)
      : session_(session), batches_(session, triggered::run_mode::performance) {
    triggered::channel_options options;
    options.executor = executor_of(kind);
    if (kind == arm::peer_kernel || kind == arm::proxy_kernel || kind == arm::graph_kernel)
      options.wait = triggered::wait_method::kernel;
    const auto id = session.new_channel_id();
    // In an order that cannot make ranks wait for each other in a ring: by rank.
    std::vector<std::pair<int, side>> order;
    for (int i = 0; i < kSides; ++i)
      if (const int peer = place.neighbour(static_cast<side>(i)); peer >= 0) order.emplace_back(peer, static_cast<side>(i));
    std::sort(order.begin(), order.end());
    for (const auto& [peer, direction] : order) ends_.push_back({direction, peer, session.connect(peer, id, options)});
  }

  void advance(int count, const halo_period& period) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    queue(count, period);
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void exchange(const halo& edges) override {
    for (const auto& each : ends_)
      tools::must(queue_when_room([&] {
        return each.link->put_signal(session_.stream(), session_.window_of(each.peer),
                                     edges.offset(opposite(each.direction)),
                                     session_.send_buffer() + edges.offset(each.direction), edges.bytes);
      }));
    for (const auto& each : ends_) tools::must(queue_when_room([&] { return each.link->wait_signal(session_.stream()); }));
  }

  void finish() override {
    batches_.wait_for_all();
    for (const auto& each : ends_)
      if (const auto now = each.link->state(); now.error != 0)
        throw tools::tool_failure(format("the channel to rank %d broke: %s", each.peer, now.reason.c_str()));
  }

 protected:
  virtual void queue(int count, const halo_period& period) {
    for (int i = 0; i < count; ++i) period();
  }
  bench_rank& session_;

 private:
  struct end {
    side direction;
    int peer;
    std::unique_ptr<triggered::channel> link;
  };
  batch_events batches_;
  std::vector<end> ends_;
};

// A batch of periods captured once: one call of the driver for all of it.
class graph_halo final : public stream_halo {
 public:
  graph_halo(bench_rank& session, const block_place& place) : stream_halo(session, place, arm::graph_kernel) {}
  ~graph_halo() override { forget(); }

  void prepare(int count, const halo_period& period) override {
    if (graphs_.count(count) != 0) return;
    graphs_.emplace(count, tools::must(captured_work::make(session_, [&]() -> status {
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

std::unique_ptr<halo_method> make_halo_method(bench_rank& session, const block_place& place, arm kind) {
  if (kind == arm::normal) return std::make_unique<normal_halo>(session, place);
  if (kind == arm::device) return make_device_halo(session, place);
  if (kind == arm::graph_kernel) return std::make_unique<graph_halo>(session, place);
  if (kind == arm::hostfn || is_captured(kind))
    throw tools::tool_failure(format("--arms: stencil and multigrid have no form for \"%s\"", to_string(kind)));
  return std::make_unique<stream_halo>(session, place, kind);
}

}  // namespace pl::async
