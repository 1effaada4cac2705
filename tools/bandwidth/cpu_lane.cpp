// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/cpu_lane.hpp"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/cpu_copy.hpp"
#include "tools/bandwidth/gpu_lane.hpp"
#include "tools/bandwidth/transfer_check.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMapCapacityBytes = 16ull << 30;    // BAR1 itself is the limit
constexpr std::uint64_t kEnginePatienceNs = 2'000'000'000;  // a launch takes 10 us; only a full GPU takes long
constexpr unsigned kMostWidth = 64;

failure stopped() { return failure{ECANCELED, "stopped: another transfer failed or took too long"}; }

bool is_to_gpu(const bound_transfer& what) { return what.destination.where.what == place::kind::gpu; }

// Loads and stores over a mapping that is made beforehand, so that nothing but the copy is timed.
class bar_lane final : public cpu_lane {
 public:
  bar_lane(gpu_set& gpus, const bound_transfer& what)
      : what_(what),
        width_(std::clamp(what.by.width, 1u, kMostWidth)),
        pool_({width_ - 1, copy::cpus_near(gpus.bus_id(what.by.gpu).c_str())}) {}

  status map(gpu_set& gpus, copy::planner& planner, std::uint64_t piece_bytes) {
    const std::uint64_t device = is_to_gpu(what_) ? what_.destination.address : what_.source.address;
    for (std::uint64_t done = 0; done < what_.bytes; done += piece_bytes) {
      const std::uint64_t bytes = std::min(piece_bytes, what_.bytes - done);
      const auto info = cu::inspect_pointer(gpus.cuda(), device + done);
      if (!info) return info.error();
      auto held = planner.maps().find(gpus.cuda(), *info, device + done, bytes);
      if (!held)
        return failure{held.code(), format("%s: mapping the GPU's memory through BAR1 failed: %s", describe(what_).c_str(),
                                           held.error().message.c_str())};
      pieces_.push_back({*std::move(held), done, bytes});
    }
    return {};
  }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    for (std::uint64_t i = 0; i < copies; ++i)
      for (const auto& one : pieces_) {
        if (stop.load(std::memory_order_relaxed)) return stopped();
        if (is_to_gpu(what_))
          copy::write_parallel(pool_, width_, one.map.type, one.map.data, what_.source.host + one.offset, one.bytes);
        else copy::read_parallel(pool_, width_, one.map.type, what_.destination.host + one.offset, one.map.data, one.bytes);
      }
    return {};
  }

 private:
  struct piece {
    copy::mapping_cache::hold map;
    std::uint64_t offset, bytes;
  };
  const bound_transfer what_;
  const unsigned width_;
  copy::worker_pool pool_;
  std::vector<piece> pieces_;
};

// The resident kernel of src/copy, kept hot as long as the lane lives.
class engine_lane final : public cpu_lane {
 public:
  engine_lane(const bound_transfer& what, copy::planner& planner, copy::gpu_engine::hold hold)
      : planner_(planner),
        hold_(std::move(hold)),
        how_{copy::method::engine_copy, static_cast<std::uint8_t>(std::clamp(what.by.width, 1u, kMostWidth))} {
    transfer_.way = is_to_gpu(what) ? copy::direction::to_device : copy::direction::to_host;
    transfer_.dst = what.destination.address;
    transfer_.src = what.source.address;
    transfer_.row_bytes = what.bytes;
    if (what.source.host != nullptr) transfer_.src = copy::address_of(what.source.host);
    if (what.destination.host != nullptr) transfer_.dst = copy::address_of(what.destination.host);
  }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    for (std::uint64_t i = 0; i < copies; ++i)
      if (auto done = copy_once(stop); !done) return done;
    return {};
  }
  std::uint64_t retries() const override { return retries_; }

 private:
  status copy_once(const std::atomic<bool>& stop) {
    for (std::uint64_t refused_ns = 0;;) {
      if (stop.load(std::memory_order_relaxed)) return stopped();
      auto done = planner_.copy_by(how_, transfer_);
      if (done || done.code() != EAGAIN) return done;
      ++retries_;
      if (refused_ns == 0) refused_ns = monotonic_ns();
      if (monotonic_ns() - refused_ns > kEnginePatienceNs)
        return failure{ETIMEDOUT, "the GPU engine took no copy for 2 s: the GPU is full; end what else runs there"};
      sched_yield();
    }
  }
  copy::planner& planner_;
  copy::gpu_engine::hold hold_;
  const copy::choice how_;
  copy::transfer transfer_;
  std::uint64_t retries_ = 0;
};

// cuMemcpyAsync where it blocks: pageable memory, and GPUs without a path between them.
class driver_lane final : public cpu_lane {
 public:
  driver_lane(gpu_set& gpus, const bound_transfer& what) : gpus_(gpus), what_(what), stream_(gpus, what.by.gpu) {}
  status open() { return stream_.open(); }
  status enter() override { return gpus_.make_current(what_.by.gpu); }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    status queued;
    for (std::uint64_t i = 0; i < copies && queued; ++i) {
      if (stop.load(std::memory_order_relaxed)) queued = stopped();
      else
        queued =
            check(gpus_.cuda().cuMemcpyAsync(what_.destination.address, what_.source.address, what_.bytes, stream_.get()));
    }
    const status ended = check(gpus_.cuda().cuStreamSynchronize(stream_.get()));
    return queued ? ended : queued;
  }

 private:
  status check(cu::result_t code) const {
    if (code == cu::error_code::success) return {};
    return gpus_.check(code, describe(what_));
  }
  gpu_set& gpus_;
  const bound_transfer what_;
  owned_stream stream_;
};

result<std::unique_ptr<cpu_lane>> make_engine_lane(gpu_set& gpus, copy::planner& planner, const bound_transfer& what) {
  if (auto ready = gpus.make_current(what.by.gpu); !ready) return ready.error();
  if (auto ready = planner.prepare(what.by.gpu); !ready) return ready.error();
  auto hold = planner.keep_hot(what.by.gpu);
  if (!hold) return failure{hold.code(), describe(what) + ": " + hold.error().message};
  return std::unique_ptr<cpu_lane>(new engine_lane(what, planner, *std::move(hold)));
}

}  // namespace

result<copy::planner*> cpu_tools::planner() {
  if (planner_ == nullptr) {
    auto wanted = copy::planner::options_from_environment();
    wanted.use_engine = true;
    wanted.maps.capacity_bytes = std::max(wanted.maps.capacity_bytes, kMapCapacityBytes);
    auto opened = copy::planner::open(gpus_.cuda(), wanted);
    if (!opened) return opened.error();
    planner_ = *std::move(opened);
    piece_bytes_ = wanted.maps.window_bytes / 2;
  }
  return planner_.get();
}

result<std::unique_ptr<cpu_lane>> make_cpu_lane(gpu_set& gpus, cpu_tools& tools, const bound_transfer& what) {
  if (what.by.what == executor_kind::ce) {
    auto lane = std::make_unique<driver_lane>(gpus, what);
    if (auto opened = lane->open(); !opened) return opened.error();
    return std::unique_ptr<cpu_lane>(std::move(lane));
  }
  const auto planner = tools.planner();
  if (!planner) return planner.error();
  if (what.by.what == executor_kind::engine) return make_engine_lane(gpus, **planner, what);
  auto lane = std::make_unique<bar_lane>(gpus, what);
  if (auto ready = gpus.make_current(what.by.gpu); !ready) return ready.error();
  if (auto mapped = lane->map(gpus, **planner, tools.piece_bytes()); !mapped) return mapped.error();
  return std::unique_ptr<cpu_lane>(std::move(lane));
}

}  // namespace pl::bandwidth
