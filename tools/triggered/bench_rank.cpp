// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/bench_rank.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>

#include "async_step_image.hpp"
#include "base/clock.hpp"
#include "cuda/kernel_image.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr std::uint64_t kCloseNs = 2'000'000'000;
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kMaxBlocks = 128;

std::vector<triggered::remote_window> exchange_windows(triggered::context& context, messaging::bootstrap& bootstrap,
                                                       std::uint64_t memory, std::size_t bytes) {
  const auto mine = tools::must(context.expose(memory, bytes));
  const auto all = tools::must(bootstrap.all_gather(std::as_bytes(std::span(&mine, 1))));
  std::vector<triggered::remote_window> out(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i) == bootstrap.rank()) continue;
    triggered::window_key key;
    std::memcpy(&key, all[i].data(), sizeof key);
    out[i] = tools::must(context.import(key));
  }
  return out;
}

}  // namespace

bench_rank::bench_rank(const bench_rank_options& plan, messaging::bootstrap& bootstrap)
    : plan_(plan), bootstrap_(bootstrap) {
  gpu_ = std::make_unique<tools::gpu_session>(plan.gpu, false);
  receive_buffer_ = std::make_unique<tools::device_memory>(*gpu_, plan.window_bytes);
  send_buffer_ = std::make_unique<tools::device_memory>(*gpu_, plan.window_bytes);
  stream_ = std::make_unique<tools::gpu_stream>(*gpu_);
  module_ = tools::must(cu::load_kernels(cuda(), kernels::async_step()));
  gpu_->check(cuda().cuModuleGetFunction(&step_, module_, "async_step"), "kernel async_step");
  plan_.context.device_ordinal = plan.gpu;
  context_ = tools::must(triggered::context::open(cuda(), bootstrap, plan_.context));
  windows_ = exchange_windows(*context_, bootstrap, receive_buffer(), plan.window_bytes);
}

bench_rank::~bench_rank() {
  static_cast<void>(cuda().cuStreamSynchronize(stream()));
  static_cast<void>(bootstrap_.barrier());  // no memory is freed while a peer's stream may write there
  messages_.reset();
  host_messages_.reset();
  context_.reset();
  static_cast<void>(cuda().cuModuleUnload(module_));
}

messaging::messenger& bench_rank::messages() {
  if (messages_ == nullptr) messages_ = tools::must(messaging::messenger::open(&cuda(), bootstrap_));
  return *messages_;
}

messaging::messenger& bench_rank::host_messages() {
  if (host_messages_ == nullptr) host_messages_ = tools::must(messaging::messenger::open(nullptr, bootstrap_));
  return *host_messages_;
}

result<std::unique_ptr<triggered::channel>> bench_rank::try_connect(int peer, std::uint32_t id,
                                                                    const triggered::channel_options& options) {
  auto made = context_->connect(peer, id, options);
  // The words of channels that were just closed are given back a moment later.
  for (const auto end = monotonic_ns() + kCloseNs; made.code() == ENOSPC && monotonic_ns() < end;) {
    sched_yield();
    made = context_->connect(peer, id, options);
  }
  if (!made) return made;
  if (auto ready = (*made)->ready(kTimeout); !ready) return ready.error();
  return made;
}

std::unique_ptr<triggered::channel> bench_rank::connect(int peer, std::uint32_t id,
                                                        const triggered::channel_options& options) {
  return tools::must(try_connect(peer, id, options));
}

void bench_rank::launch_step(std::uint64_t bytes, std::uint64_t busy_ns) const {
  std::uint64_t target = send_buffer(), origin = receive_buffer(), words = bytes / 8;
  void* parameters[] = {&target, &origin, &words, &busy_ns};
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(words / kThreads, 1, kMaxBlocks));
  gpu_->check(cuda().cuLaunchKernel(step_, blocks, 1, 1, kThreads, 1, 1, 0, stream(), parameters, nullptr), "kernel launch");
}

void bench_rank::fill(std::uint64_t value, std::size_t bytes) const {
  const std::vector<std::uint64_t> words(bytes / 8, value);
  for (const auto buffer : {receive_buffer(), send_buffer()})
    gpu_->check(cuda().cuMemcpyHtoD_v2(buffer, words.data(), bytes), "cuMemcpyHtoD");
}

std::size_t bench_rank::wrong_words(std::uint64_t value, std::size_t bytes) const {
  std::vector<std::uint64_t> words(bytes / 8);
  gpu_->check(cuda().cuMemcpyDtoH_v2(words.data(), send_buffer(), bytes), "cuMemcpyDtoH");
  return static_cast<std::size_t>(std::count_if(words.begin(), words.end(), [&](auto word) { return word != value; }));
}

double bench_rank::time_on_gpu(int count, const std::function<void()>& call) const {
  std::array<cu::event_t, 2> events{};
  for (auto& event : events) gpu_->check(cuda().cuEventCreate(&event, 0), "cuEventCreate");
  gpu_->check(cuda().cuEventRecord(events[0], stream()), "cuEventRecord");
  for (int i = 0; i < count; ++i) call();
  gpu_->check(cuda().cuEventRecord(events[1], stream()), "cuEventRecord");
  synchronize();
  float ms = 0;
  gpu_->check(cuda().cuEventElapsedTime(&ms, events[0], events[1]), "cuEventElapsedTime");
  for (auto event : events) static_cast<void>(cuda().cuEventDestroy_v2(event));
  return static_cast<double>(ms) * 1e6 / count;
}

void bench_rank::synchronize() const { gpu_->check(cuda().cuStreamSynchronize(stream()), "the exchange"); }
void bench_rank::barrier() const { tools::must(bootstrap_.barrier()); }

std::vector<std::string> bench_rank::gather(std::string_view mine) const {
  std::vector<std::string> out;
  for (const auto& one : tools::must(bootstrap_.all_gather(std::as_bytes(std::span(mine)))))
    out.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  return out;
}

}  // namespace pl::async
