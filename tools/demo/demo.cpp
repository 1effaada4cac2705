// SPDX-License-Identifier: Apache-2.0
// demo: every job of Peerlane once on whatever GPU there is, verified: memory is mapped and copied, links are measured and
// judged, two processes exchange a message, streams trigger an exchange, and a store gives back after kill -9 what it
// acknowledged. Each job but the first is another command of this program, printed as a user would type it. A job that fails
// is reported and the others still run; the exit code is 1 if any failed. Bound: 60 s on a GPU, 15 s on the simulated one.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>

#include "base/clock.hpp"
#include "measure/text_table.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/kernel_module.hpp"
#include "tools/demo/demo_job.hpp"
#include "tools/gdrcopy/copylat.hpp"
#include "tools/gdrcopy/pplat.hpp"
#include "tools/gdrcopy/sanity.hpp"
#include "tools/machine/info.hpp"

namespace pl::tools {
namespace {

struct step_report {
  std::string name;
  bool passed = false;
  std::string text;
  double seconds = 0;
};

// The rows of one kind, of those that name none: all that have this field.
std::vector<nlohmann::json> rows_with(const nlohmann::json& results, const char* field) {
  std::vector<nlohmann::json> out;
  for (const auto& row : results.at("rows"))
    if (row.contains(field)) out.push_back(row);
  return out;
}

// ---- What the other commands are asked, and what their results say in one line -------------------------------------------

demo_job links_job(bool simulated) {
  constexpr int kExitSlow = 3, kExitUnsteady = 6;  // of peerlane bandwidth: measured, and the verdicts say so
  demo_job job{
      "links and their verdicts",
      {"bandwidth", "-b", simulated ? "1" : "64", "-i", "3", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"},
      {},
      60,
      {kExitSlow, kExitUnsteady}};
  if (!simulated) job.arguments.emplace_back("device_local_copy");
  // The simulated boards get links of a known speed, so that there is something to judge.
  if (simulated) job.environment = {{"PEERLANE_SIM_LINKS", "pcie=1x4/1x4"}, {"PEERLANE_SIM_RATES", "h2d=0.8,d2h=0.8"}};
  return job;
}

std::string links_line(const nlohmann::json& results) {
  std::map<std::string, int> verdicts;
  std::size_t cells = 0;
  for (const auto& row : rows_with(results, "verdict")) {
    if (row.value("kind", "") != "cell") continue;
    ++cells;
    verdicts[row["verdict"].is_string() ? row["verdict"].get<std::string>() : "without expectation"]++;
  }
  if (cells == 0) throw tool_failure("no cell was measured");
  std::string out;
  for (const auto& [verdict, count] : verdicts) out += format("%s%d %s", out.empty() ? "" : ", ", count, verdict.c_str());
  return format("%zu rates, every byte checked: %s", cells, out.c_str());
}

demo_job message_job(bool simulated) {
  return {
      "message between two processes",
      {"p2p", "latency", "D", "D", "-m", simulated ? "8:64K" : "8:1M", "-i", simulated ? "100" : "1000", "-x", "10", "-c"},
      {},
      60,
      {}};
}

std::string message_line(const nlohmann::json& results) {
  const auto rows = rows_with(results, "validation");
  if (rows.empty()) throw tool_failure("no size was validated");
  for (const auto& row : rows)
    if (row["validation"] != "Pass") throw tool_failure("a message arrived with wrong bytes");
  const auto named = [](const nlohmann::json& row) {
    return format("%s %s", format_size(row["size_bytes"].get<std::uint64_t>()).c_str(),
                  format_duration_ns(row["latency_ns_p50"].get<double>()).c_str());
  };
  return format("%zu sizes, every byte checked: %s, %s one way", rows.size(), named(rows.front()).c_str(),
                named(rows.back()).c_str());
}

demo_job triggered_job(bool simulated, int gpus) {
  demo_job job{"stream-triggered exchange", {"async", "pingpong", "-s", "64", "-k", "0", "-r", "3"}, {}, 60, {}};
  job.arguments.insert(job.arguments.end(), {"-i", simulated ? "300" : "3000"});
  // With one GPU for both ranks the CPU's proxy sends for the stream; two GPUs do without.
  const std::vector<std::string> one_gpu = {"--gpus", "0,0", "--arms", "normal,proxy"}, several = {"--arms", "normal,peer"};
  const auto& more = gpus > 1 ? several : one_gpu;
  job.arguments.insert(job.arguments.end(), more.begin(), more.end());
  return job;
}

std::string triggered_line(const nlohmann::json& results) {
  std::string out;
  for (const auto& row : rows_with(results, "iteration_ns_p50"))
    out +=
        format("%s%s %s", out.empty() ? "" : ", ", row["arm"] == "normal" ? "CPU between all steps" : "triggered by streams",
               format_duration_ns(row["iteration_ns_p50"].get<double>()).c_str());
  if (out.empty()) throw tool_failure("no exchange was measured");
  return "round trip, every word checked: " + out;
}

demo_job store_job(bool simulated) {
  return {"store that survives kill -9", {"store", "crash-demo", "--size", simulated ? "16M" : "64M"}, {}, 60, {}};
}

std::string store_line(const nlohmann::json& results) {
  const auto rows = rows_with(results, "restart_ns");
  if (rows.size() != 1) throw tool_failure("the value was not compared");
  const auto& row = rows.front();
  return format(
      "durable put %.2f GB/s from GPU memory; server killed; new one after %s; get %.2f GB/s, every byte as it was",
      row["put_gb_per_s"].get<double>(), format_duration_ns(row["restart_ns"].get<double>()).c_str(),
      row["get_gb_per_s"].get<double>());
}

// ---- The run -------------------------------------------------------------------------------------------------------------

class demo_run {
 public:
  demo_run(const common_options& options, result_file& results) : options_(options), results_(results) {}

  void map_and_copy(const gpu_session& gpu) {
    step("map and copy", [&] {
      print_machine(gpu, results_);
      const std::size_t cases = correctness(gpu);
      const std::string eight_bytes = copies(gpu);
      return format("%zu correctness cases passed; %s%s", cases, eight_bytes.c_str(), round_trip(gpu).c_str());
    });
  }

  template <class Line>
  void job(const demo_job& job, const Line& line) {
    step(job.title, [&] {
      std::printf("\n== %s: %s\n", job.title.c_str(), command_text(job).c_str());
      return line(run_demo_job(job));
    });
  }
  void missing(const char* title, const char* cause) {
    step(title, [&]() -> std::string { throw tool_failure(cause); });
  }

  // The summary; true if nothing failed.
  bool finish(bool simulated) {
    text_table table({{"job", text_table::align::left},
                      {"result", text_table::align::left},
                      {"time"},
                      {"what was seen", text_table::align::left}});
    bool good = true;
    for (const auto& one : steps_) {
      good = good && one.passed;
      const char* result = one.passed ? "pass" : "FAIL";
      table.add_row({one.name, result, format("%.1f s", one.seconds), one.text});
      results_.add_row(
          {{"kind", "step"}, {"step", one.name}, {"result", result}, {"text", one.text}, {"seconds", one.seconds}});
    }
    std::printf("\nsummary%s\n%s\n%s\n", simulated ? " (simulated GPU: timings are not a GPU's)" : "",
                table.render().c_str(), good ? "PASS" : "FAIL");
    return good;
  }
  const std::string& mapping_type() const { return mapping_type_; }

 private:
  template <class Body>
  void step(const std::string& name, Body&& body) {
    step_report out{name, false, "", 0};
    const std::uint64_t begin_ns = monotonic_ns();
    try {
      out.text = body();
      out.passed = true;
    } catch (const std::exception& failure) { out.text = failure.what(); }
    out.seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    steps_.push_back(std::move(out));
  }

  // A part of `peerlane sanity`; every case runs in a process of its own. Returns how many passed.
  std::size_t correctness(const gpu_session& gpu) {
    std::printf("\n== correctness: peerlane sanity (a part of it)\n");
    std::size_t passed = 0, failed = 0;
    for (const auto& one : all_sanity_cases()) {
      if (!one.in_demo) continue;
      const auto done = run_case(one, {gpu.ordinal(), false}, kDefaultCaseTimeoutS);
      const bool is_passed = done.outcome == case_outcome::passed, is_waived = done.outcome == case_outcome::waived;
      std::printf("  %-4s  %s%s%s\n",
                  is_passed   ? "pass"
                  : is_waived ? "wvd"
                              : "FAIL",
                  one.name, done.reason.empty() ? "" : ": ", done.reason.c_str());
      results_.add_row(
          {{"kind", "sanity"}, {"case", one.name}, {"passed", is_passed}, {"waived", is_waived}, {"reason", done.reason}});
      if (!is_waived) (is_passed ? passed : failed)++;
    }
    if (failed != 0 || passed == 0) throw tool_failure(format("%zu correctness cases passed, %zu failed", passed, failed));
    return passed;
  }

  // Every size both ways by every method, compared byte for byte. Returns the smallest size's figures.
  std::string copies(const gpu_session& gpu) {
    std::printf("\n== copies: peerlane copylat\n");
    copylat_options options;
    options.common = options_;
    options.max_bytes = 1 << 20;
    options.sizes = {8, 64, 1024, 4096, 65536, 1 << 20};
    options.write_iterations = 2000;
    options.read_iterations = 400;
    options.budget_ms = gpu.simulated() ? 60 : 400;
    copy_bench bench(gpu, options, options.max_bytes);
    mapping_type_ = bench.buffer.mapping_type();
    run_comparison(bench, options, results_);
    return "every copied byte compared";
  }

  // Flags between the CPU and a running kernel; empty where this build has no kernels for this GPU.
  std::string round_trip(const gpu_session& gpu) {
    if (!kernel_module::why_missing(gpu).empty()) return "";
    pplat_options options;
    options.common = options_;
    options.blocks = 1;
    options.threads = 1;
    options.iterations = gpu.simulated() ? 50 : 1000;
    const device_memory memory(gpu, ping_pong_bytes(options));
    const gdr_session session;
    const gdr_buffer buffer(session, memory.get(), memory.size_bytes());
    const auto outcome = run_ping_pong(gpu, options, session, buffer);
    if (outcome.mismatches != 0) throw tool_failure(format("%" PRIu64 " words of data were wrong", outcome.mismatches));
    nlohmann::json row{{"kind", "round_trip"}, {"data_bytes", 0}, {"blocks", 1}, {"series", "round_trip"}};
    row.update(latency_fields(outcome.samples_ns));
    results_.add_row(std::move(row));
    results_.add_samples("round_trip", outcome.samples_ns);
    return "; CPU to kernel and back " + format_duration_ns(summarize(outcome.samples_ns).p50);
  }

  const common_options& options_;
  result_file& results_;
  std::vector<step_report> steps_;
  std::string mapping_type_ = "unknown";
};

}  // namespace

int run_demo(const invocation& call) {
  common_options options;
  command_parser parser(
      call, "Runs every feature once and verifies it: map and copy, links, a message, a stream-triggered exchange, a store");
  parser.common(options);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "demo");
  demo_run demo(options, out.file());
  bool simulated = false;
  int gpus = 0;
  {
    const gpu_session gpu(options.gpu, false);
    simulated = gpu.simulated();
    gpu.check(gpu.cuda().cuDeviceGetCount(&gpus), "cuDeviceGetCount");
    out.describe(&gpu, nullptr, place_thread(options, gpu.bus_id(), simulated));
    demo.map_and_copy(gpu);
  }
  out.set_mapping_type(demo.mapping_type());
  demo.job(links_job(simulated), links_line);
  demo.job(message_job(simulated), message_line);
#ifdef PL_HAS_ASYNC
  demo.job(triggered_job(simulated, gpus), triggered_line);
#else
  demo.missing("stream-triggered exchange",
               "this build has no UCX (libucx-dev): `make setup` installs what every part needs");
#endif
#ifdef PL_HAS_STORE
  demo.job(store_job(simulated), store_line);
#else
  demo.missing("store that survives kill -9",
               "this build has no store (librocksdb-dev, liburing-dev, ...): `make setup` installs them");
#endif
  const bool good = demo.finish(simulated);
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
