// SPDX-License-Identifier: Apache-2.0
// `peerlane copy --beside`: what a resident copy kernel costs everything else.
//
// Calls that wait for the GPU to be idle (cuMemFree, cuModuleUnload, cuCtxSynchronize) may wait for the engine's kernel, at
// most its lease; kernels of the application share the multiprocessors with it. Both are measured without an engine, with
// one whose lease is over, with one held idle and with one at work, in turns within one run.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <functional>
#include <map>

#include "base/text.hpp"
#include "load_image.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "measure/text_table.hpp"
#include "tools/common/kernel_module.hpp"
#include "tools/copy/copy_arena.hpp"
#include "tools/copy/copy_command.hpp"
#include "tools/copy/engine_scenario.hpp"

namespace pl::tools {
namespace {

constexpr std::int64_t kMaxCallSamples = 300;
constexpr std::size_t kRounds = 6;
constexpr double kWantedKernelMs = 3;

using samples_by_state = std::map<engine_state, std::vector<double>>;

// Both parts visit the states in turns; the order changes from round to round.
class beside_bench {
 public:
  beside_bench(const gpu_session& gpu, const copy_options& options, result_file& results)
      : gpu_(gpu), results_(results), scene_(gpu, copy::planner::options_from_environment()), is_small_(gpu.simulated()) {
    rounds_ = is_small_ ? 2 : kRounds;
    calls_each_ = is_small_ ? 3
                            : static_cast<std::size_t>(std::max<std::int64_t>(
                                  1, std::min(options.samples, kMaxCallSamples) / static_cast<std::int64_t>(kRounds)));
    launches_each_ = is_small_ ? 2 : options.samples < kMaxCallSamples ? 4 : 10;
  }

  void run() {
    if (!scene_.enter(engine_state::held)) {
      std::printf("note: without a copy kernel there is nothing to compare: %s\n", scene_.why_not().c_str());
      results_.add_note("no copy kernel: " + scene_.why_not());
    }
    results_.set_parameter("lease_us_in_force", scene_.lease_us());
    calls();
    kernels_beside();
  }

 private:
  void check(cu::result_t rc, const char* description) const { gpu_.check(rc, description); }

  template <class Body>
  void in_turns(const char* title, Body&& body) {
    progress line(title, rounds_ * kEngineStates.size());
    std::size_t done = 0;
    for (std::size_t round = 0; round < rounds_; ++round)
      for (std::size_t i = 0; i < kEngineStates.size(); ++i) {
        const engine_state state = kEngineStates[(i + round) % kEngineStates.size()];
        line.start_step(done++, name_of(state));
        if (scene_.enter(state)) body(state);
      }
    scene_.enter(engine_state::none);
  }

  // ---- Calls ------------------------------------------------------------------------------------------------------------

  struct driver_call {
    std::string name;
    std::function<void()> run;
    samples_by_state samples_ns;
  };

  std::vector<driver_call> driver_calls(cu::device_ptr scratch, const void* host) {
    const auto& cuda = gpu_.cuda();
    const std::uint64_t large = is_small_ ? 1u << 20 : 64u << 20;
    const auto alloc_free = [this, &cuda](std::uint64_t bytes) {
      cu::device_ptr pointer = 0;
      check(cuda.cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc");
      check(cuda.cuMemFree_v2(pointer), "cuMemFree");
    };
    std::vector<driver_call> out;
    out.push_back({"cuMemAlloc + cuMemFree 64 KiB", [=] { alloc_free(64u << 10); }, {}});
    out.push_back({"cuMemAlloc + cuMemFree " + format_size(large), [=] { alloc_free(large); }, {}});
    out.push_back({"cuCtxSynchronize", [this, &cuda] { check(cuda.cuCtxSynchronize(), "cuCtxSynchronize"); }, {}});
    if (kernel_module::why_missing(gpu_).empty())
      out.push_back(
          {"cuModuleLoadData + cuModuleUnload",
           [this, &cuda] { check(cuda.cuModuleUnload(must(cu::load_kernels(cuda, kernels::load()))), "cuModuleUnload"); },
           {}});
    out.push_back(
        {"cuMemcpyHtoD 64 B", [=, this, &cuda] { check(cuda.cuMemcpyHtoD_v2(scratch, host, 64), "cuMemcpyHtoD"); }, {}});
    out.push_back({"memset and default stream sync",
                   [=, this, &cuda] {
                     check(cuda.cuMemsetD8_v2(scratch, 1, 64u << 10), "cuMemsetD8");
                     check(cuda.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
                   },
                   {}});
    return out;
  }

  void calls() {
    const device_block scratch(gpu_, gpu_.ordinal(), 64u << 10);
    const host_memory host(gpu_, 4096);
    auto all = driver_calls(scratch.get(), host.data());
    in_turns("calls beside an engine", [&](engine_state state) {
      for (auto& one : all) {
        one.run();
        auto& samples_ns = one.samples_ns[state];
        for (std::size_t i = 0; i < calls_each_; ++i) samples_ns.push_back(time_once_ns(one.run));
      }
    });
    std::vector<text_table::column> columns{{"call", text_table::align::left}};
    for (const auto state : kEngineStates) {
      columns.push_back({format("%s p50", name_of(state))});
      columns.push_back({"p99"});
      columns.push_back({"max"});
    }
    columns.push_back({"worst max / lease"});
    text_table table(std::move(columns));
    for (const auto& one : all) {
      std::vector<std::string> cells{one.name};
      double worst = 0;
      for (const auto state : kEngineStates) {
        const auto found = one.samples_ns.find(state);
        if (found == one.samples_ns.end()) {
          cells.insert(cells.end(), {"-", "-", "-"});
          continue;
        }
        const summary sum = summarize(found->second);
        const double leases = sum.max / 1e3 / scene_.lease_us();
        if (state != engine_state::none) worst = std::max(worst, leases);
        cells.insert(cells.end(), {short_number(sum.p50 / 1e3), short_number(sum.p99 / 1e3), short_number(sum.max / 1e3)});
        nlohmann::json row{
            {"kind", "beside"}, {"call", one.name}, {"engine", name_of(state)}, {"lease_us", scene_.lease_us()}};
        row.update(latency_fields(found->second));
        row["max_leases"] = leases;
        results_.add_row(std::move(row));
      }
      cells.push_back(format("%.2f", worst));
      table.add_row(std::move(cells));
    }
    std::printf("\ncalls beside a copy kernel, microseconds; lease %u us; %" PRIu64 " copies by the thread that used it\n%s",
                scene_.lease_us(), scene_.copies_beside(), table.render().c_str());
  }

  // ---- Kernels ----------------------------------------------------------------------------------------------------------

  struct load_kernel {
    std::string name;
    std::function<void(cu::stream_t)> launch;
    double bytes = 0;  // moved by one launch; 0: none worth counting
    samples_by_state samples_ns;
  };

  double time_kernel_ns(const std::function<void(cu::stream_t)>& launch) const {
    check(gpu_.cuda().cuEventRecord(begin_, stream_->get()), "cuEventRecord");
    launch(stream_->get());
    check(gpu_.cuda().cuEventRecord(end_, stream_->get()), "cuEventRecord");
    check(gpu_.cuda().cuEventSynchronize(end_), "cuEventSynchronize");
    float taken_ms = 0;
    check(gpu_.cuda().cuEventElapsedTime(&taken_ms, begin_, end_), "cuEventElapsedTime");
    return static_cast<double>(taken_ms) * 1e6;
  }

  // How often the work must be repeated for kWantedKernelMs, from one launch that does it `tried` times.
  std::uint32_t scaled(std::uint32_t tried, const std::function<void(cu::stream_t)>& launch) const {
    if (is_small_) return 1;
    time_kernel_ns(launch);
    const double taken_ns = std::max(1e3, time_kernel_ns(launch));
    return static_cast<std::uint32_t>(std::clamp(kWantedKernelMs * 1e6 / taken_ns * tried, 1.0, 1e8));
  }

  std::vector<load_kernel> load_kernels(const kernel_module& module, const device_block& memory, std::uint64_t half_bytes) {
    const auto processors = static_cast<unsigned>(std::max(1, gpu_.attribute(cu::device_attribute::multiprocessor_count)));
    const auto resident =
        static_cast<unsigned>(std::max(1, gpu_.attribute(cu::device_attribute::max_threads_per_multiprocessor)));
    const unsigned threads = is_small_ ? 32 : 256;
    // Arithmetic: as many blocks as are resident at a time, so that what the engine displaces has to wait for a whole block;
    // and the same work in eight times as many blocks, which is how most kernels are.
    const unsigned blocks = is_small_ ? 2 : processors * (resident / threads);
    // Half of the threads saturate memory.
    const unsigned memory_blocks = is_small_ ? 2 : processors * std::max(1u, resident / threads / 2);
    const auto compute = [=, &module, out = memory.get()](unsigned grid, std::uint32_t rounds) {
      return [=, &module](cu::stream_t stream) { module.launch("load_compute", grid, threads, 0, stream, out, rounds); };
    };
    const auto move = [=, &module, buffer = memory.get()](std::uint32_t repeats) {
      return [=, &module](cu::stream_t stream) {
        module.launch("load_memory", memory_blocks, threads, 0, stream, buffer, buffer + half_bytes, half_bytes / 16,
                      repeats);
      };
    };
    const std::uint32_t rounds = std::max(8u, scaled(10'000, compute(blocks, 10'000)));
    const std::uint32_t repeats = scaled(4, move(4));
    std::vector<load_kernel> out;
    out.push_back({"arithmetic, all resident", compute(blocks, rounds), 0, {}});
    out.push_back({"arithmetic, 8 waves", compute(blocks * 8, rounds / 8), 0, {}});
    out.push_back({"memory", move(repeats), 2.0 * static_cast<double>(half_bytes) * repeats, {}});
    return out;
  }

  void kernels_beside() {
    if (const auto reason = kernel_module::why_missing(gpu_); !reason.empty()) {
      std::printf("note: kernels beside an engine are not measured: %s\n", reason.c_str());
      results_.add_note("kernels beside an engine are not measured: " + reason);
      return;
    }
    const std::uint64_t half_bytes = is_small_ ? 16u << 10 : 256u << 20;
    const device_block memory(gpu_, gpu_.ordinal(), 2 * half_bytes);
    memory.set(0, 1, 2 * half_bytes);
    const kernel_module module(gpu_, kernels::load());
    stream_.emplace(gpu_);
    check(gpu_.cuda().cuEventCreate(&begin_, cu::event_flag::standard), "cuEventCreate");
    check(gpu_.cuda().cuEventCreate(&end_, cu::event_flag::standard), "cuEventCreate");
    auto all = load_kernels(module, memory, half_bytes);
    in_turns("kernels beside an engine", [&](engine_state state) {
      for (auto& one : all) {
        time_kernel_ns(one.launch);
        for (std::size_t i = 0; i < launches_each_; ++i) one.samples_ns[state].push_back(time_kernel_ns(one.launch));
      }
    });
    gpu_.cuda().cuEventDestroy_v2(begin_);
    gpu_.cuda().cuEventDestroy_v2(end_);
    stream_.reset();
    report_kernels(all);
  }

  void report_kernels(std::span<const load_kernel> all) {
    std::vector<text_table::column> columns{{"kernel", text_table::align::left}};
    for (const auto state : kEngineStates) {
      columns.push_back({format("%s p50 ms", name_of(state))});
      if (state != engine_state::none) columns.push_back({"/ none"});
    }
    columns.push_back({"GB/s none"});
    columns.push_back({"held"});
    text_table table(std::move(columns));
    for (const auto& one : all) {
      std::vector<std::string> cells{one.name};
      std::map<engine_state, double> p50_ns;
      for (const auto state : kEngineStates) {
        const auto found = one.samples_ns.find(state);
        if (found == one.samples_ns.end()) {
          cells.insert(cells.end(), {"-", "-"});
          continue;
        }
        p50_ns[state] = summarize(found->second).p50;
        const double ratio = p50_ns[engine_state::none] > 0 ? p50_ns[state] / p50_ns[engine_state::none] : 0;
        cells.push_back(format("%.4f", p50_ns[state] / 1e6));
        if (state != engine_state::none) cells.push_back(format("%.4f", ratio));
        nlohmann::json row{{"kind", "throughput"}, {"kernel", one.name}, {"engine", name_of(state)}};
        row.update(latency_fields(found->second));
        row["ratio_p50_to_none"] = ratio;
        if (one.bytes > 0) row["bandwidth_gb_per_s"] = p50_ns[state] > 0 ? one.bytes / p50_ns[state] : 0.0;
        results_.add_row(std::move(row));
      }
      for (const auto state : {engine_state::none, engine_state::held})
        cells.push_back(one.bytes > 0 && p50_ns[state] > 0 ? format("%.0f", one.bytes / p50_ns[state]) : "-");
      table.add_row(std::move(cells));
    }
    std::printf("\nkernels beside a copy kernel, milliseconds by events\n%s", table.render().c_str());
  }

  const gpu_session& gpu_;
  result_file& results_;
  engine_scenario scene_;
  bool is_small_;
  std::size_t rounds_ = 1, calls_each_ = 1, launches_each_ = 1;
  std::optional<gpu_stream> stream_;
  cu::event_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void run_copy_beside(const gpu_session& gpu, const copy_options& options, result_file& results) {
  beside_bench(gpu, options, results).run();
}

}  // namespace pl::tools
