// SPDX-License-Identifier: Apache-2.0
// demo: the main job in short. What is here, does it work, how fast is it. Under a minute on a GPU, under 20 seconds on the
// simulated one. A step that fails is reported and the others still run; the exit code is 1 if any failed.
#include <cinttypes>
#include <cstdio>

#include "clock.hpp"
#include "copylat.hpp"
#include "gpu_choice.hpp"
#include "info.hpp"
#include "kernel_module.hpp"
#include "pplat.hpp"
#include "progress.hpp"
#include "sanity.hpp"
#include "table.hpp"

namespace pl::tools {
namespace {

enum class step_state { passed, failed, not_run };

struct step_report {
  std::string name;
  step_state state = step_state::failed;
  std::string text;
  double seconds = 0;
};

const char* word(step_state state) {
  return state == step_state::passed ? "pass" : state == step_state::failed ? "FAIL" : "not run";
}

class demo_run {
 public:
  demo_run(const gpu_session& gpu, const common_options& options, result_file& results)
      : gpu_(gpu), options_(options), results_(results) {}

  void machine() {
    step("machine", [&] {
      print_machine(gpu_, results_);
      return std::string("see above");
    });
  }

  void correctness() {
    step("correctness", [&] {
      std::printf("\ncorrectness (a part of `peerlane sanity`; every case runs in a process of its own)\n");
      std::size_t passed = 0, waived = 0, failed = 0;
      for (const auto& one : all_sanity_cases()) {
        if (!one.in_demo) continue;
        const auto done = run_case(one, {gpu_.ordinal(), false}, kDefaultCaseTimeoutS);
        std::printf("  %-4s  %s%s%s\n",
                    done.outcome == case_outcome::passed   ? "pass"
                    : done.outcome == case_outcome::waived ? "wvd"
                                                           : "FAIL",
                    one.name, done.reason.empty() ? "" : ": ", done.reason.c_str());
        results_.add_row({{"kind", "sanity"},
                          {"case", one.name},
                          {"passed", done.outcome == case_outcome::passed},
                          {"waived", done.outcome == case_outcome::waived},
                          {"reason", done.reason}});
        (done.outcome == case_outcome::passed ? passed : done.outcome == case_outcome::waived ? waived : failed)++;
      }
      std::string text = format("%zu passed, %zu failed, %zu waived", passed, failed, waived);
      if (failed != 0 || passed == 0) throw tool_failure(text);
      return text;
    });
  }

  void copies() {
    step("copies", [&] {
      copylat_options options;
      options.common = options_;
      options.max_bytes = 1 << 20;
      options.sizes = {8, 64, 256, 1024, 4096, 65536, 1 << 20};
      options.write_iterations = 2000;
      options.read_iterations = 400;
      options.budget_ms = gpu_.simulated() ? 60 : 400;
      copy_bench bench(gpu_, options, options.max_bytes);
      mapping_type_ = bench.buffer.mapping_type();
      run_comparison(bench, options, results_);
      return std::string("every size moved both ways by every method and compared byte for byte");
    });
  }

  void round_trips() {
    step("round trip, flags only", [&] { return round_trip(0, 1, 1, gpu_.simulated() ? 50 : 1000); });
    step("round trip, 4 KiB, 8 blocks",
         [&] { return round_trip(4096, 8, gpu_.simulated() ? 4 : 128, gpu_.simulated() ? 20 : 500); });
  }

  // The summary; true if nothing failed.
  bool finish() {
    text_table table({{"step", text_table::align::left},
                      {"result", text_table::align::left},
                      {"time"},
                      {"remark", text_table::align::left}});
    bool good = true;
    for (const auto& one : steps_) {
      good = good && one.state != step_state::failed;
      table.add_row({one.name, word(one.state), format("%.1f s", one.seconds), one.text});
      results_.add_row(
          {{"kind", "step"}, {"step", one.name}, {"result", word(one.state)}, {"text", one.text}, {"seconds", one.seconds}});
    }
    std::printf("\nsummary%s\n%s\n%s\n", gpu_.simulated() ? " (simulated GPU: timings are not a GPU's)" : "",
                table.render().c_str(), good ? "PASS" : "FAIL");
    return good;
  }
  const std::string& mapping_type() const { return mapping_type_; }

 private:
  // Thrown by a step that cannot run here; says exactly why.
  struct not_possible : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  template <class Body>
  void step(const char* name, Body&& body) {
    step_report out{name, step_state::failed, "", 0};
    const std::uint64_t begin_ns = monotonic_ns();
    try {
      out.text = body();
      out.state = step_state::passed;
    } catch (const not_possible& why) {
      out.state = step_state::not_run;
      out.text = why.what();
    } catch (const std::exception& why) { out.text = why.what(); }
    out.seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    steps_.push_back(std::move(out));
  }

  std::string round_trip(std::uint64_t data_bytes, std::int64_t blocks, std::int64_t threads, std::int64_t iterations) {
    if (const auto why = kernel_module::why_missing(gpu_); !why.empty()) throw not_possible(why);
    pplat_options options;
    options.common = options_;
    options.data_bytes = data_bytes;
    options.blocks = blocks;
    options.threads = threads;
    options.iterations = iterations;
    const device_memory memory(gpu_, ping_pong_bytes(options));
    const gdr_session gdr;
    const gdr_buffer buffer(gdr, memory.get(), memory.size_bytes());
    const auto outcome = run_ping_pong(gpu_, options, gdr, buffer);
    if (outcome.mismatches != 0) throw tool_failure(format("%" PRIu64 " words of data were wrong", outcome.mismatches));
    const summary all = summarize(outcome.samples_ns);
    const std::string series = format("round_trip_%" PRIu64, data_bytes);
    nlohmann::json row{{"kind", "round_trip"}, {"data_bytes", data_bytes}, {"blocks", blocks}, {"series", series}};
    row.update(latency_fields(outcome.samples_ns));
    results_.add_row(std::move(row));
    results_.add_samples(series, outcome.samples_ns);
    return format("median %s, p99 %s, min %s", format_duration_ns(all.p50).c_str(), format_duration_ns(all.p99).c_str(),
                  format_duration_ns(all.min).c_str());
  }

  const gpu_session& gpu_;
  const common_options& options_;
  result_file& results_;
  std::vector<step_report> steps_;
  std::string mapping_type_ = "unknown";
};

}  // namespace

int run_demo(const invocation& call) {
  common_options options;
  command_parser parser(call, "What is here, does it work, how fast is it: info, correctness, copies, round trips, summary");
  parser.common(options);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "demo");
  const gpu_session gpu(options.gpu, false);
  demo_run demo(gpu, options, out.file());
  demo.machine();
  demo.correctness();
  const std::string cpus = place_thread(options, gpu.bus_id(), gpu.simulated());
  demo.copies();
  demo.round_trips();
  const bool good = demo.finish();
  out.describe(&gpu, nullptr, cpus);
  out.set_mapping_type(demo.mapping_type());
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
