// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/device_halo.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "halo_exchange_image.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/batch_events.hpp"
#include "tools/triggered/kernels/halo_exchange.h"
#include "triggered/fd_memory_server.hpp"

namespace pl::async {
namespace {

constexpr std::chrono::seconds kHaloTimeout{30};
constexpr std::uint64_t kWordsBytes = 4096, kErrorsOffset = 2048;
constexpr std::uint32_t kField = 0, kWords = 1;  // what a rank hands over

class device_halo final : public halo_method {
 public:
  device_halo(bench_rank& session, const block_place& place)
      : session_(session), words_(session.gpu(), kWordsBytes), batches_(session, triggered::run_mode::performance) {
    session.gpu().check(session.cuda().cuMemsetD8_v2(words_.get(), 0, kWordsBytes), "cuMemsetD8");
    session.gpu().synchronize();
    open_rings();
    module_ = tools::must(cu::load_kernels(session.cuda(), kernels::halo_exchange()));
    session.gpu().check(session.cuda().cuModuleGetFunction(&kernel_, module_, "halo_exchange"), "kernel halo_exchange");
    meet(place);
  }
  ~device_halo() override {
    static_cast<void>(session_.cuda().cuStreamSynchronize(session_.stream()));
    static_cast<void>(session_.cuda().cuModuleUnload(module_));
  }

  void advance(int count, const halo_period& period) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    for (int i = 0; i < count; ++i) period();
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void exchange(const halo& edges) override {
    post_.first = edges.first;
    post_.pitch = edges.pitch;
    post_.bytes = edges.bytes;
    ++post_.number;
    std::uint64_t errors = words_.get() + kErrorsOffset;
    void* parameters[] = {&post_, &errors};
    session_.gpu().check(
        session_.cuda().cuLaunchKernel(kernel_, 1, 1, 1, kSides, 1, 1, 0, session_.stream(), parameters, nullptr),
        "launch of halo_exchange");
  }

  void finish() override {
    batches_.wait_for_all();
    std::array<std::int64_t, kSides> errors{};
    session_.gpu().check(session_.cuda().cuMemcpyDtoH_v2(errors.data(), words_.get() + kErrorsOffset, sizeof errors),
                         "cuMemcpyDtoH");
    for (const auto code : errors) {
      if (code == 0) continue;
      const auto now = rings_->ring(0).read();
      throw tools::tool_failure(
          format("a kernel's exchange of halos was answered with %lld%s%s", static_cast<long long>(code),
                 now.reason ? ": " : ", a neighbour's signal did not come", now.reason ? now.reason->message.c_str() : ""));
    }
  }

 private:
  void open_rings() {
    device::session_options wanted;
    wanted.device_ordinal = session_.gpu().ordinal();
    wanted.backend = device::ring_backend::channels;
    wanted.ring.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(kHaloTimeout).count());
    rings_ = tools::must(device::session::open(session_.cuda(), wanted));
    post_.ring = rings_->ring(0).handle();
    post_.edges = tools::must(rings_->add_window(session_.send_buffer(), session_.window_bytes()));
    post_.words = tools::must(rings_->add_window(words_.get(), kWordsBytes));
  }

  result<triggered::fd_memory> hand_over(std::uint32_t number) const {
    const address_range memory = number == kWords ? address_range{words_.get(), kWordsBytes}
                                                  : address_range{session_.receive_buffer(), session_.window_bytes()};
    auto shared = rings_->share(memory);
    if (!shared) return shared.error();
    return triggered::fd_memory{std::move(shared->region), shared->offset, memory.size_bytes};
  }

  peerlane_device_window fetch(const triggered::fd_memory_server::name& owner, std::uint32_t number) {
    auto memory = tools::must(triggered::fd_memory_server::fetch(owner, number, kHaloTimeout));
    auto window = tools::must(rings_->add_shared(memory.region));
    window.dma += memory.offset;
    window.size_bytes = memory.bytes;
    return window;
  }

  // Every rank gives its windows to its neighbours, and none continues before all have them.
  void meet(const block_place& place) {
    memory_server_ =
        tools::must(triggered::fd_memory_server::open([this](std::uint32_t number) { return hand_over(number); }));
    const auto names =
        tools::must(session_.bootstrap().all_gather(std::as_bytes(std::span(&memory_server_->own_name(), 1))));
    for (int i = 0; i < kSides; ++i) {
      const int peer = place.neighbour(static_cast<side>(i));
      if (peer < 0) continue;
      triggered::fd_memory_server::name owner;
      std::memcpy(&owner, names[static_cast<std::size_t>(peer)].data(), sizeof owner);
      post_.neighbours[i] = {fetch(owner, kField), fetch(owner, kWords)};
    }
    session_.barrier();
  }

  bench_rank& session_;
  tools::device_memory words_;
  batch_events batches_;
  std::unique_ptr<device::session> rings_;
  std::unique_ptr<triggered::fd_memory_server> memory_server_;  // ends first: its thread uses the others
  cu::module_t module_ = nullptr;
  cu::function_t kernel_ = nullptr;
  halo_post post_{};
};

}  // namespace

std::unique_ptr<halo_method> make_device_halo(bench_rank& session, const block_place& place) {
  return std::make_unique<device_halo>(session, place);
}

}  // namespace pl::async
