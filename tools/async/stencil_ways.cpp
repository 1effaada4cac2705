// SPDX-License-Identifier: Apache-2.0
#include "stencil_ways.hpp"

#include <algorithm>
#include <vector>

#include "batch_events.hpp"
#include "clock.hpp"
#include "kernel_image.hpp"
#include "stencil_step_image.hpp"
#include "text.hpp"
#include "tool.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kTag = 0x57e4;
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kMostBlocks = 2112;  // 16 a multiprocessor of an H200

class normal_way final : public stencil_way {
 public:
  explicit normal_way(station& at) : by_(at.messages()) {}

  void advance(const gpu_block& block, std::uint64_t first, int count) override {
    for (std::uint64_t step = first; step < first + static_cast<std::uint64_t>(count); ++step) {
      block.launch(step);
      block.at().synchronize();
      exchange(block, step);
    }
  }
  void finish() override {}

 private:
  void exchange(const gpu_block& block, std::uint64_t step) {
    std::vector<link::request> under_way;
    const auto edge = [&](std::uint64_t base, side of) {
      return link::device_buffer(base + block.edge_offset(step, of), block.edge_bytes());
    };
    for (int i = 0; i < kSides; ++i) {
      const auto of = static_cast<side>(i);
      const int peer = block.place().neighbour(of);
      if (peer < 0) continue;
      under_way.push_back(by_.irecv(peer, edge(block.at().in(), of), kTag));
      under_way.push_back(by_.isend(peer, edge(block.at().out(), of), kTag));
    }
    for (auto& one : under_way) tools::must(one.wait());
  }

  link::messenger& by_;
};

class stream_way final : public stencil_way {
 public:
  stream_way(station& at, const block_place& place, arm which) : batches_(at, stream::run_mode::performance) {
    stream::channel_options options;
    options.executor = which == arm::proxy ? stream::executor_kind::proxy : stream::executor_kind::peer;
    if (which == arm::peer_kernel) options.wait = stream::wait_way::kernel;
    const auto id = at.new_channel_id();
    // In an order that cannot make ranks wait for each other in a ring: by rank.
    std::vector<std::pair<int, side>> order;
    for (int i = 0; i < kSides; ++i)
      if (const int peer = place.neighbour(static_cast<side>(i)); peer >= 0) order.emplace_back(peer, static_cast<side>(i));
    std::sort(order.begin(), order.end());
    for (const auto& [peer, of] : order) ends_.push_back({of, peer, at.connect(peer, id, options)});
  }

  void advance(const gpu_block& block, std::uint64_t first, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    const auto& at = block.at();
    for (std::uint64_t step = first; step < first + static_cast<std::uint64_t>(count); ++step) {
      block.launch(step);
      for (const auto& each : ends_) {
        const auto source = at.out() + block.edge_offset(step, each.of);
        const auto to = block.edge_offset(step, opposite(each.of));
        static_cast<void>(
            tools::must(each.to->put_signal(at.on(), at.window_of(each.peer), to, source, block.edge_bytes())));
      }
      for (const auto& each : ends_) static_cast<void>(tools::must(each.to->wait_signal(at.on())));
    }
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    for (const auto& each : ends_)
      if (const auto now = each.to->state(); now.error != 0)
        throw tools::tool_failure(format("the channel to rank %d broke: %s", each.peer, now.why.c_str()));
  }

 private:
  struct end {
    side of;
    int peer;
    std::unique_ptr<stream::channel> to;
  };
  batch_events batches_;
  std::vector<end> ends_;
};

}  // namespace

gpu_block::gpu_block(station& at, const block_place& place)
    : at_(at),
      place_(place),
      first_(at.gpu(), field_bytes()),
      fields_{tools::device_memory(at.gpu(), field_bytes()), tools::device_memory(at.gpu(), field_bytes())} {
  module_ = tools::must(cu::load_kernels(at.cuda(), kernels::stencil_step()));
  at.gpu().check(at.cuda().cuModuleGetFunction(&kernel_, module_, "stencil_step"), "kernel stencil_step");
  const auto values = first_block(place);
  at.gpu().check(at.cuda().cuMemcpyHtoD_v2(first_.get(), values.data(), field_bytes()), "cuMemcpyHtoD");
}

gpu_block::~gpu_block() {
  static_cast<void>(at_.cuda().cuStreamSynchronize(at_.on()));
  static_cast<void>(at_.cuda().cuModuleUnload(module_));
}

void gpu_block::launch(std::uint64_t step) const {
  auto n = static_cast<unsigned>(place_.n);
  std::uint64_t next = fields_[step % 2].get(), now = fields_[(step + 1) % 2].get(),
                ghosts = at_.in() + edge_offset(step + 1, up), edges = at_.out() + edge_offset(step, up);
  void* parameters[] = {&next, &now, &ghosts, &edges, &n};
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(std::uint64_t{n} * n / kThreads, 1, kMostBlocks));
  at_.gpu().check(at_.cuda().cuLaunchKernel(kernel_, blocks, 1, 1, kThreads, 1, 1, 0, at_.on(), parameters, nullptr),
                  "kernel launch");
}

void gpu_block::reset() const {
  const auto& cuda = at_.cuda();
  at_.gpu().check(cuda.cuMemcpyDtoD_v2(fields_[0].get(), first_.get(), field_bytes()), "cuMemcpyDtoD");
  const auto around = first_ghosts(place_);
  for (std::uint64_t step = 0; step < 2; ++step)
    at_.gpu().check(cuda.cuMemcpyHtoD_v2(at_.in() + edge_offset(step, up), around.data(), kSides * edge_bytes()),
                    "cuMemcpyHtoD");
  at_.gpu().synchronize();
}

std::vector<double> gpu_block::field(std::uint64_t step) const {
  std::vector<double> out(static_cast<std::size_t>(place_.n) * static_cast<std::size_t>(place_.n));
  at_.gpu().check(at_.cuda().cuMemcpyDtoH_v2(out.data(), fields_[step % 2].get(), field_bytes()), "cuMemcpyDtoH");
  return out;
}

std::unique_ptr<stencil_way> make_stencil_way(station& at, const block_place& place, arm which) {
  if (which == arm::normal) return std::make_unique<normal_way>(at);
  if (which == arm::hostfn || which == arm::graph)
    throw tools::tool_failure(format("--arms: the stencil has no form for \"%s\"", to_string(which)));
  return std::make_unique<stream_way>(at, place, which);
}

}  // namespace pl::async
