// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/cpu_copier.hpp"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/channel_source.hpp"
#include "copy/cpu_copy.hpp"
#include "tools/bandwidth/gpu_copier.hpp"
#include "tools/bandwidth/list_order.hpp"
#include "tools/bandwidth/transfer_check.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMapCapacityBytes = 16ull << 30;   // BAR1 itself is the limit
constexpr std::uint64_t kEngineTimeoutNs = 2'000'000'000;  // a launch takes 10 us; only a full GPU takes long
constexpr unsigned kMaxTeamWidth = 64;

failure stopped() { return failure{ECANCELED, "stopped: another transfer failed or took too long"}; }

bool is_to_gpu(const bound_transfer& transfer) { return transfer.destination.location.type == place::kind::gpu; }

// Loads and stores through a mapping that is made before timing starts.
class bar_copier final : public cpu_copier {
 public:
  bar_copier(gpu_set& gpus, const bound_transfer& transfer)
      : transfer_(transfer),
        width_(std::clamp(transfer.executor.width, 1u, kMaxTeamWidth)),
        pool_({width_ - 1, copy::cpus_near(gpus.bus_id(transfer.executor.gpu).c_str())}) {}

  status map(gpu_set& gpus, copy::planner& planner, std::uint64_t piece_bytes) {
    const std::uint64_t device = is_to_gpu(transfer_) ? transfer_.destination.address : transfer_.source.address;
    for (std::uint64_t done = 0; done < transfer_.bytes; done += piece_bytes) {
      const std::uint64_t bytes = std::min(piece_bytes, transfer_.bytes - done);
      const auto info = cu::inspect_pointer(gpus.cuda(), device + done);
      if (!info) return info.error();
      auto held = planner.maps().find(gpus.cuda(), *info, device + done, bytes);
      if (!held)
        return failure{held.code(), format("%s: mapping the GPU's memory through BAR1 failed: %s",
                                           describe(transfer_).c_str(), held.error().message.c_str())};
      pieces_.push_back({*std::move(held), done, bytes});
    }
    return {};
  }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    for (std::uint64_t i = 0; i < copies; ++i)
      for (const auto& one : pieces_) {
        if (stop.load(std::memory_order_relaxed)) return stopped();
        if (is_to_gpu(transfer_))
          copy::write_parallel(pool_, width_, one.map.type, one.map.data, transfer_.source.host + one.offset, one.bytes);
        else
          copy::read_parallel(pool_, width_, one.map.type, transfer_.destination.host + one.offset, one.map.data, one.bytes);
      }
    return {};
  }

 private:
  struct piece {
    copy::mapping_cache::hold map;
    std::uint64_t offset, bytes;
  };
  const bound_transfer transfer_;
  const unsigned width_;
  copy::worker_pool pool_;
  std::vector<piece> pieces_;
};

// The copy between host and GPU memory.
copy::transfer whole_of(const bound_transfer& transfer) {
  copy::transfer out;
  out.way = is_to_gpu(transfer) ? copy::direction::to_device : copy::direction::to_host;
  out.dst = transfer.destination.address;
  out.src = transfer.source.address;
  out.row_bytes = transfer.bytes;
  if (transfer.source.host != nullptr) out.src = copy::address_of(transfer.source.host);
  if (transfer.destination.host != nullptr) out.dst = copy::address_of(transfer.destination.host);
  return out;
}

// The resident kernel of src/copy, kept hot as long as the copier lives.
class kernel_copier final : public cpu_copier {
 public:
  kernel_copier(const bound_transfer& transfer, copy::planner& planner, copy::gpu_engine::hold hold)
      : planner_(planner),
        hold_(std::move(hold)),
        choice_{copy::method::engine_copy,
                static_cast<std::uint8_t>(std::clamp(transfer.executor.width, 1u, kMaxTeamWidth))},
        transfer_(whole_of(transfer)) {}

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
      auto done = planner_.copy_by(choice_, transfer_);
      if (done || done.code() != EAGAIN) return done;
      ++retries_;
      if (refused_ns == 0) refused_ns = monotonic_ns();
      if (monotonic_ns() - refused_ns > kEngineTimeoutNs)
        return failure{ETIMEDOUT, "the copy kernel took no copy for 2 s: the GPU is full; end other programs on it"};
      sched_yield();
    }
  }
  copy::planner& planner_;
  copy::gpu_engine::hold hold_;
  const copy::choice choice_;
  const copy::transfer transfer_;
  std::uint64_t retries_ = 0;
};

// A DMA channel: one piece, or blocks in scattered order.
class channel_copier final : public cpu_copier {
 public:
  channel_copier(const bound_transfer& transfer, copy::planner& planner) : planner_(planner) {
    const copy::transfer whole = whole_of(transfer);
    const std::uint64_t block = transfer.executor.width != 0 ? transfer.executor.width * 1024ull : transfer.bytes;
    for (const auto& numbers : scattered_lists((transfer.bytes + block - 1) / block)) {
      auto& list = lists_.emplace_back();
      for (const std::uint64_t number : numbers) {
        const std::uint64_t begin = number * block;
        list.push_back({whole.way, whole.dst + begin, whole.src + begin, std::min(block, transfer.bytes - begin)});
      }
    }
  }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    for (std::uint64_t i = 0; i < copies; ++i) {
      if (stop.load(std::memory_order_relaxed)) return stopped();
      for (const auto& list : lists_)
        if (auto done = copy_list(list); !done) return done;
    }
    return {};
  }

 private:
  status copy_list(const std::vector<copy::transfer>& list) {
    if (list.size() == 1) return planner_.copy_by({copy::method::dma_channel, 1}, list[0]);
    const std::uint64_t before = by_channel();
    if (auto done = planner_.copy_list(list); !done) return done;
    if (by_channel() - before < list.size())
      return failure{EIO, "the list did not go by DMA channel: peerlane doctor says why"};
    return {};
  }
  std::uint64_t by_channel() const { return planner_.counts().copies[static_cast<std::size_t>(copy::method::dma_channel)]; }
  copy::planner& planner_;
  std::vector<std::vector<copy::transfer>> lists_;
};

result<std::unique_ptr<cpu_copier>> make_channel_copier(gpu_set& gpus, cpu_tools& tools, const bound_transfer& transfer) {
  const auto not_here = [&](const std::string& reason) { return failure{ENOTSUP, describe(transfer) + ": " + reason}; };
  if (!transfer.source.gpu_reachable || !transfer.destination.gpu_reachable)
    return not_here("a DMA channel only supports pinned memory");
  if (auto ready = gpus.make_current(transfer.executor.gpu); !ready) return ready.error();
  // Asked first for its reason: copies would silently go another way.
  if (auto source = copy::channel_source::open(gpus.cuda(), transfer.executor.gpu); !source)
    return not_here(source.error().message);
  const auto planner = tools.channel_planner();
  if (!planner) return planner.error();
  if (auto ready = (*planner)->prepare(transfer.executor.gpu); !ready) return ready.error();
  return std::unique_ptr<cpu_copier>(new channel_copier(transfer, **planner));
}

// cuMemcpyAsync in the cases in which it blocks: pageable memory, and GPUs without a path between them.
class driver_copier final : public cpu_copier {
 public:
  driver_copier(gpu_set& gpus, const bound_transfer& transfer)
      : gpus_(gpus), transfer_(transfer), stream_(gpus, transfer.executor.gpu) {}
  status open() { return stream_.open(); }
  status enter() override { return gpus_.make_current(transfer_.executor.gpu); }

  status copy(std::uint64_t copies, const std::atomic<bool>& stop) override {
    status queued;
    for (std::uint64_t i = 0; i < copies && queued; ++i) {
      if (stop.load(std::memory_order_relaxed)) queued = stopped();
      else
        queued = check(gpus_.cuda().cuMemcpyAsync(transfer_.destination.address, transfer_.source.address, transfer_.bytes,
                                                  stream_.get()));
    }
    const status ended = check(gpus_.cuda().cuStreamSynchronize(stream_.get()));
    return queued ? ended : queued;
  }

 private:
  status check(cu::result_t code) const {
    if (code == cu::error_code::success) return {};
    return gpus_.check(code, describe(transfer_));
  }
  gpu_set& gpus_;
  const bound_transfer transfer_;
  owned_stream stream_;
};

result<std::unique_ptr<cpu_copier>> make_kernel_copier(gpu_set& gpus, copy::planner& planner,
                                                       const bound_transfer& transfer) {
  if (auto ready = gpus.make_current(transfer.executor.gpu); !ready) return ready.error();
  if (auto ready = planner.prepare(transfer.executor.gpu); !ready) return ready.error();
  auto hold = planner.keep_hot(transfer.executor.gpu);
  if (!hold) return failure{hold.code(), describe(transfer) + ": " + hold.error().message};
  return std::unique_ptr<cpu_copier>(new kernel_copier(transfer, planner, *std::move(hold)));
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

result<copy::planner*> cpu_tools::channel_planner() {
  if (channel_planner_ == nullptr) {
    auto wanted = copy::planner::options_from_environment();
    wanted.use_engine = false;
    wanted.channels = copy::channel_use::always;
    auto opened = copy::planner::open(gpus_.cuda(), wanted);
    if (!opened) return opened.error();
    channel_planner_ = *std::move(opened);
  }
  return channel_planner_.get();
}

result<std::unique_ptr<cpu_copier>> make_cpu_copier(gpu_set& gpus, cpu_tools& tools, const bound_transfer& transfer) {
  if (transfer.executor.kind == executor_kind::ce) {
    auto copier = std::make_unique<driver_copier>(gpus, transfer);
    if (auto opened = copier->open(); !opened) return opened.error();
    return std::unique_ptr<cpu_copier>(std::move(copier));
  }
  if (transfer.executor.kind == executor_kind::dma) return make_channel_copier(gpus, tools, transfer);
  const auto planner = tools.planner();
  if (!planner) return planner.error();
  if (transfer.executor.kind == executor_kind::engine) return make_kernel_copier(gpus, **planner, transfer);
  auto copier = std::make_unique<bar_copier>(gpus, transfer);
  if (auto ready = gpus.make_current(transfer.executor.gpu); !ready) return ready.error();
  if (auto mapped = copier->map(gpus, **planner, tools.piece_bytes()); !mapped) return mapped.error();
  return std::unique_ptr<cpu_copier>(std::move(copier));
}

}  // namespace pl::bandwidth
