// SPDX-License-Identifier: Apache-2.0
// What loops in graphs save of the CPU, on one GPU and without a peer: kernels of a word each, as a graph that is launched
// again and again by a thread that sleeps until the GPU's interrupt, and as the body of a WHILE node that one launch
// repeats. By the number of kernels of a graph; each form runs for the same time, and the word must have counted every
// kernel.
//
//     graph_loop_bench [--seconds N] [FILE.json]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "async_step_image.hpp"
#include "base/clock.hpp"
#include "cuda/kernel_image.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/cpu_use.hpp"
#include "tools/triggered/graph_loop.hpp"

namespace {

using namespace pl;

struct use {
  double seconds = 0, busy_percent = 0, sleeps_per_s = 0;
};

class bench {
 public:
  explicit bench(double seconds)
      : seconds_(seconds),
        gpu_(0),
        stream_(gpu_),
        counter_(gpu_, 8),
        module_(tools::must(cu::load_kernels(gpu_.cuda(), kernels::async_step()))) {
    step_ = tools::must(cu::find_kernel(gpu_.cuda(), module_, "async_step"));
    for (auto& each : events_)
      gpu_.check(gpu_.cuda().cuEventCreate(&each, cu::event_flag::disable_timing | cu::event_flag::blocking_sync),
                 "cuEventCreate");
  }
  ~bench() {
    for (auto each : events_) static_cast<void>(gpu_.cuda().cuEventDestroy_v2(each));
    static_cast<void>(gpu_.cuda().cuModuleUnload(module_));
  }

  int run(const char* path) {
    std::FILE* const file = path != nullptr ? std::fopen(path, "w") : nullptr;
    if (path != nullptr && file == nullptr) return std::perror(path), 1;
    std::printf("%8s %-9s %12s %8s %9s\n", "kernels", "form", "us a kernel", "CPU %", "sleeps/s");
    std::string rows;
    bool is_right = true;
    for (const std::uint64_t kernels : {1u, 8u, 80u, 640u, 1920u}) {
      const auto launched = measure(kernels, false, is_right), looped = measure(kernels, true, is_right);
      rows += row(kernels, "launched", launched) + row(kernels, "loop", looped);
    }
    if (file != nullptr) {
      std::fprintf(file, "{\"bench\": \"graph_loop\", \"seconds_each\": %g, \"passed\": %s, \"rows\": [\n%s\n]}\n", seconds_,
                   is_right ? "true" : "false", rows.substr(0, rows.size() - 2).c_str());
      std::fclose(file);
    }
    return is_right ? 0 : 1;
  }

 private:
  status queue(std::uint64_t kernels) {
    std::uint64_t word = counter_.get(), words = 1, busy_ns = 0;
    void* parameters[] = {&word, &word, &words, &busy_ns};
    for (std::uint64_t i = 0; i < kernels; ++i)
      gpu_.check(gpu_.cuda().cuLaunchKernel(step_, 1, 1, 1, 32, 1, 1, 0, stream_.get(), parameters, nullptr),
                 "cuLaunchKernel");
    return {};
  }
  std::uint64_t count() {
    std::uint64_t value = 0;
    gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(&value, counter_.get(), 8), "cuMemcpyDtoH");
    return value;
  }
  void wait_for(std::size_t place) { gpu_.check(gpu_.cuda().cuEventSynchronize(events_[place]), "cuEventSynchronize"); }

  // `passes` of the graph; some are queued ahead.
  void replay(cu::graph_exec_t exec, std::uint64_t passes) {
    for (std::uint64_t i = 0; i < passes; ++i) {
      if (i >= kAhead) wait_for(i % kAhead);
      gpu_.check(gpu_.cuda().cuGraphLaunch(exec, stream_.get()), "cuGraphLaunch");
      gpu_.check(gpu_.cuda().cuEventRecord(events_[i % kAhead], stream_.get()), "cuEventRecord");
    }
    wait_for((passes - 1) % kAhead);
  }
  void repeat(const async::graph_loop& loop, std::uint64_t passes) {
    loop.launch(passes);
    gpu_.check(gpu_.cuda().cuEventRecord(events_[0], stream_.get()), "cuEventRecord");
    wait_for(0);
  }

  use measure(std::uint64_t kernels, bool is_loop, bool& is_right) {
    const auto& cuda = gpu_.cuda();
    gpu_.check(cuda.cuMemsetD8_v2(counter_.get(), 0, 8), "cuMemsetD8");
    cu::graph_t graph = nullptr;
    cu::graph_exec_t exec = nullptr;
    gpu_.check(cuda.cuStreamBeginCapture_v2(stream_.get(), cu::capture_mode::relaxed), "cuStreamBeginCapture");
    tools::must(queue(kernels));
    gpu_.check(cuda.cuStreamEndCapture(stream_.get(), &graph), "cuStreamEndCapture");
    gpu_.check(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    const auto loop = tools::must(async::graph_loop::make(gpu_, stream_.get(), [&] { return queue(kernels); }));
    const auto act = [&](std::uint64_t passes) { is_loop ? repeat(loop, passes) : replay(exec, passes); };
    const std::uint64_t trial = std::max<std::uint64_t>(10, 2000 / kernels);
    act(trial);  // uploads
    const auto trial_ns = monotonic_ns();
    act(trial);
    const double pass_s = static_cast<double>(monotonic_ns() - trial_ns) * 1e-9 / static_cast<double>(trial);
    const auto passes = std::max<std::uint64_t>(10, static_cast<std::uint64_t>(seconds_ / pass_s));
    const auto before = async::cpu_use::now();
    const auto begin_ns = monotonic_ns();
    act(passes);
    const double taken = static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
    const auto after = async::cpu_use::now();
    const std::uint64_t wanted = (2 * trial + passes) * kernels, seen = count();
    if (seen != wanted) {
      std::fprintf(stderr, "%llu kernels ran, not %llu\n", static_cast<unsigned long long>(seen),
                   static_cast<unsigned long long>(wanted));
      is_right = false;
    }
    static_cast<void>(cuda.cuGraphExecDestroy(exec));
    static_cast<void>(cuda.cuGraphDestroy(graph));
    const use out{taken / static_cast<double>(passes * kernels), (after.seconds - before.seconds) / taken * 100,
                  static_cast<double>(after.switches - before.switches) / taken};
    std::printf("%8llu %-9s %12.3f %8.3f %9.0f\n", static_cast<unsigned long long>(kernels), is_loop ? "loop" : "launched",
                out.seconds * 1e6, out.busy_percent, out.sleeps_per_s);
    std::fflush(stdout);
    return out;
  }
  static std::string row(std::uint64_t kernels, const char* form, const use& seen) {
    char text[200];
    std::snprintf(
        text, sizeof text,
        " {\"kernels\": %llu, \"form\": \"%s\", \"kernel_ns\": %.1f, \"cpu_busy_percent\": %.4f, \"sleeps_per_s\": %.1f},\n",
        static_cast<unsigned long long>(kernels), form, seen.seconds * 1e9, seen.busy_percent, seen.sleeps_per_s);
    return text;
  }

  static constexpr std::size_t kAhead = 3;
  const double seconds_;
  tools::gpu_session gpu_;
  tools::gpu_stream stream_;
  tools::device_memory counter_;
  cu::module_t module_;
  cu::function_t step_ = nullptr;
  cu::event_t events_[kAhead] = {};
};

}  // namespace

int main(int argc, char** argv) try {
  double seconds = 4;
  const char* path = nullptr;
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds = std::atof(argv[++i]);
    else path = argv[i];
  return bench(seconds).run(path);
} catch (const pl::tools::tool_failure& reason) {
  std::fprintf(stderr, "%s\n", reason.what());
  return 1;
}
