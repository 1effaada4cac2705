// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/cost.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "async_step_image.hpp"
#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"
#include "cuda/kernel_image.hpp"
#include "stream_put_image.hpp"
#include "tools/common/tool.hpp"
#include "triggered/mem_ops.hpp"
#include "triggered/remote_memory.hpp"

namespace pl::async {
namespace {

using triggered::mem_ops;

struct kind {
  std::string name;
  std::function<void(std::uint64_t turn)> queue;
  std::vector<double> gpu_ns, cpu_ns;
  bool is_queue_full = false;
  std::string refused;  // by the driver
};

constexpr std::uint64_t kQueueFullNs = 50'000'000;

class bench {
 public:
  bench(const tools::gpu_session& gpu, const cost_plan& plan)
      : gpu_(gpu), cuda_(gpu.cuda()), plan_(plan), stream_(gpu), words_(gpu, kBytes) {
    context_ = tools::must(copy::find_context(cuda_, gpu.ordinal(), nullptr));
    host_ = tools::must(copy::pinned_buffer::make(context_, 4096));
    step_module_ = tools::must(cu::load_kernels(cuda_, kernels::async_step()));
    put_module_ = tools::must(cu::load_kernels(cuda_, kernels::stream_put()));
    gpu_.check(cuda_.cuModuleGetFunction(&step_, step_module_, "async_step"), "async_step");
    gpu_.check(cuda_.cuModuleGetFunction(&put_, put_module_, "stream_put"), "stream_put");
    for (auto& event : events_) gpu_.check(cuda_.cuEventCreate(&event, 0), "cuEventCreate");
    gpu_.check(cuda_.cuMemsetD8_v2(words_.get(), 0, kBytes), "cuMemsetD8");
    if (plan.peer >= 0) open_peer();
    make_kinds();
  }
  ~bench() {
    static_cast<void>(cuda_.cuStreamSynchronize(stream_.get()));
    if (peer_ != 0) static_cast<void>(cuda_.cuMemFree_v2(peer_));
    for (auto event : events_) static_cast<void>(cuda_.cuEventDestroy_v2(event));
    static_cast<void>(cuda_.cuModuleUnload(step_module_));
    static_cast<void>(cuda_.cuModuleUnload(put_module_));
  }

  int all(result_file* file) {
    for (int turn = 0; turn <= plan_.repeats; ++turn)
      for (auto& one : kinds_)
        if (one.refused.empty()) measure(one, turn != 0);
    std::printf("# each kind queued %d times in a row behind a held stream, %d repetitions, interleaved; us an operation\n",
                plan_.operations, plan_.repeats);
    std::printf("%-44s %10s %10s\n", "operation", "GPU", "CPU call");
    for (const auto& one : kinds_) {
      if (!one.refused.empty()) {
        std::printf("%-44s refused: %s\n", one.name.c_str(), one.refused.c_str());
        continue;
      }
      const double gpu_ns = summarize(one.gpu_ns).p50, cpu_ns = summarize(one.cpu_ns).p50;
      std::printf("%-44s %10.3f %10.3f%s\n", one.name.c_str(), gpu_ns * 1e-3, cpu_ns * 1e-3,
                  one.is_queue_full ? "  launch queue full: not held back" : "");
      if (file == nullptr) continue;
      file->add_samples(one.name, one.gpu_ns);
      file->add_row({{"series", one.name},
                     {"operation", one.name},
                     {"gpu_ns_p50", gpu_ns},
                     {"cpu_ns_p50", cpu_ns},
                     {"launch_queue_full", one.is_queue_full}});
    }
    return tools::kExitOk;
  }

 private:
  static constexpr std::size_t kBytes = 1 << 20;
  static constexpr std::size_t kGate = 3072;  // offset of the word that holds the stream

  void open_peer() {
    const auto theirs = tools::must(copy::find_context(cuda_, plan_.peer, nullptr));
    {
      const auto use = tools::must(copy::context_use::enter(theirs));
      gpu_.check(cuda_.cuMemAlloc_v2(&peer_, kBytes), "memory of the other GPU");
    }
    const auto rc = cuda_.cuCtxEnablePeerAccess(theirs.handle, 0);
    if (rc != cu::error_code::peer_access_already_enabled) gpu_.check(rc, "peer access");
  }

  void launch_step(std::uint64_t bytes) {
    std::uint64_t target = words_.get() + kBytes / 2, origin = words_.get(), words = bytes / 8, busy = 0;
    void* parameters[] = {&target, &origin, &words, &busy};
    gpu_.check(cuda_.cuLaunchKernel(step_, 1, 1, 1, 256, 1, 1, 0, stream_.get(), parameters, nullptr), "launch");
  }
  void launch_put(std::uint64_t dst, std::uint64_t bytes, std::uint64_t flag, std::uint64_t sent, std::uint64_t value) {
    std::uint64_t src = words_.get() + kBytes / 2;
    void* parameters[] = {&dst, &src, &bytes, &flag, &value, &sent, &value};
    gpu_.check(cuda_.cuLaunchKernel(put_, 1, 1, 1, 256, 1, 1, 0, stream_.get(), parameters, nullptr), "launch");
  }
  void copy(std::uint64_t dst, std::uint64_t bytes) {
    gpu_.check(cuda_.cuMemcpyDtoDAsync_v2(dst, words_.get() + kBytes / 2, bytes, stream_.get()), "copy");
  }
  mem_ops ops() { return {cuda_, stream_.get()}; }
  std::uint64_t host(std::size_t offset) const { return host_.device_address() + offset; }

  void add(std::string name, std::function<void(std::uint64_t)> queue) {
    kinds_.push_back({std::move(name), std::move(queue), {}, {}, false, {}});
  }

  void make_kinds() {
    const std::uint64_t local = words_.get() + 4096,
                        waited = words_.get() + 8192;  // `waited` holds 0: any wait for 0 is over
    add("kernel", [this](auto) { launch_step(128); });
    add("write64 here", [=, this](auto v) { tools::must(ops().write64(local, v).submit()); });
    add("write64 to host", [this](auto v) { tools::must(ops().write64(host(0), v).submit()); });
    add("wait64 here, satisfied", [=, this](auto) { tools::must(ops().wait64(waited, 0).submit()); });
    add("wait64 + flush", [=, this](auto) { tools::must(ops().wait64(waited, 0).flush().submit()); });
    add("wait64 on host word, satisfied", [this](auto) { tools::must(ops().wait64(host(64), 0).submit()); });
    add("4 write64 to host in a batch", [this](auto v) {
      tools::must(ops().write64(host(0), v).write64(host(8), v).write64(host(16), v).write64(host(24), v).submit());
    });
    add("host, wait64, host in a batch",
        [=, this](auto v) { tools::must(ops().write64(host(0), v).wait64(waited, 0).write64(host(8), v).submit()); });
    add("kernel, wait64", [=, this](auto) {
      launch_step(128);
      tools::must(ops().wait64(waited, 0).submit());
    });
    add("kernel, host + wait64 + host", [=, this](auto v) {
      launch_step(128);
      tools::must(ops().write64(host(0), v).wait64(waited, 0).write64(host(8), v).submit());
    });
    add("kernel, write64 here", [=, this](auto v) {
      launch_step(128);
      tools::must(ops().write64(local, v).submit());
    });
    add("kernel, kernel", [this](auto) {
      launch_step(128);
      launch_step(128);
    });
    add("kernel, event record", [this](auto) {
      launch_step(128);
      gpu_.check(cuda_.cuEventRecord(events_[2], stream_.get()), "cuEventRecord");
    });
    add("copy engine, 128 B here", [=, this](auto) { copy(local, 128); });
    if (peer_ != 0) make_peer_kinds();
  }

  void make_peer_kinds() {
    add("write64 to peer", [this](auto v) { tools::must(ops().write64(peer_, v).submit()); });
    add("put kernel, 128 B, flag", [this](auto v) { launch_put(peer_ + 4096, 128, peer_, 0, v); });
    add("put kernel, 128 B, flag, host word", [this](auto v) { launch_put(peer_ + 4096, 128, peer_, host(0), v); });
    add("copy engine, 128 B to peer", [this](auto) { copy(peer_ + 4096, 128); });
    add("copy engine, 128 B to peer, write64 to peer", [this](auto v) {
      copy(peer_ + 4096, 128);
      tools::must(ops().write64(peer_, v).submit());
    });
    add("kernel, put kernel", [this](auto v) {
      launch_step(128);
      launch_put(peer_ + 4096, 128, peer_, host(0), v);
    });
    add("kernel, write64 to peer", [this](auto v) {
      launch_step(128);
      tools::must(ops().write64(peer_, v).submit());
    });
    add("wait64, kernel, put kernel, wait64", [this](auto v) {
      launch_step(128);
      launch_put(peer_ + 4096, 128, peer_, host(0), v);
      tools::must(ops().wait64(words_.get() + 8192, 0).submit());
    });
    add("wait64 with host words, kernel, put kernel", [this](auto v) {
      launch_step(128);
      launch_put(peer_ + 4096, 128, peer_, host(0), v);
      tools::must(ops().write64(host(8), v).wait64(words_.get() + 8192, 0).write64(host(16), v).submit());
    });
  }

  // A full launch queue blocks the call that would fill it over, and the stream is held: the gate opens then, and the figure
  // holds what the CPU takes.
  void measure(kind& one, bool is_counted) {
    auto* const gate = reinterpret_cast<std::uint64_t*>(host_.data() + kGate);
    std::atomic<bool> is_queued{false};
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    std::jthread guard([&] {  // before the stream is held: where it cannot be started nothing waits for it
      const auto end = monotonic_ns() + kQueueFullNs;
      while (!is_queued.load(std::memory_order_acquire) && monotonic_ns() < end) std::this_thread::yield();
      if (!is_queued.load(std::memory_order_acquire)) one.is_queue_full = true;
      __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    });
    tools::must(ops().wait64(host(kGate), 1).submit());
    gpu_.check(cuda_.cuEventRecord(events_[0], stream_.get()), "cuEventRecord");
    const auto begin = monotonic_ns();
    try {
      for (int i = 1; i <= plan_.operations; ++i) one.queue(static_cast<std::uint64_t>(i));
    } catch (const tools::tool_failure& failure) { one.refused = failure.what(); }
    const auto queued = monotonic_ns();
    gpu_.check(cuda_.cuEventRecord(events_[1], stream_.get()), "cuEventRecord");
    is_queued.store(true, std::memory_order_release);
    guard.join();
    gpu_.check(cuda_.cuStreamSynchronize(stream_.get()), one.name);
    float ms = 0;
    gpu_.check(cuda_.cuEventElapsedTime(&ms, events_[0], events_[1]), "cuEventElapsedTime");
    if (!is_counted || !one.refused.empty()) return;
    one.gpu_ns.push_back(static_cast<double>(ms) * 1e6 / plan_.operations);
    one.cpu_ns.push_back(static_cast<double>(queued - begin) / plan_.operations);
  }

  const tools::gpu_session& gpu_;
  const cu::driver_table& cuda_;
  const cost_plan& plan_;
  copy::gpu_context context_;
  tools::gpu_stream stream_;
  tools::device_memory words_;
  copy::pinned_buffer host_;
  cu::device_ptr peer_ = 0;
  cu::module_t step_module_ = nullptr, put_module_ = nullptr;
  cu::function_t step_ = nullptr, put_ = nullptr;
  cu::event_t events_[3] = {};
  std::vector<kind> kinds_;
};

}  // namespace

int run_cost(const tools::gpu_session& gpu, const cost_plan& plan, result_file* file) { return bench(gpu, plan).all(file); }

}  // namespace pl::async
