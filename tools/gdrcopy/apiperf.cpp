// SPDX-License-Identifier: Apache-2.0
// apiperf: cost of pin, map, get_info, unmap and unpin by size, in the output shape of gdrcopy_apiperf.
//
// Every call is timed alone with the clock's cost removed. The stock columns are means; the result file adds medians and
// tails. Histogram rows are the real bin edges (the stock tool prints multiples of the minimum).
// Every pin finds no other pin of the allocation alive, as in the stock tool; with --cached one is kept alive, so that
// the pin cache is what is measured.
#include <gdrapi.h>

#include <array>
#include <cinttypes>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "tools/common/report.hpp"

namespace pl::tools {
namespace {

struct apiperf_options {
  common_options common;
  std::uint64_t max_bytes = 16u << 20;
  std::int64_t iterations = 100;
  std::int64_t warm_up = 10;
  bool cached = false;
};

std::optional<int> parse(const invocation& call, apiperf_options& options) {
  command_parser parser(call, "Measures the cost of the calls that make and remove a mapping");
  parser.size("-s,--size", options.max_bytes, "Largest buffer; sizes are doubled from 64 KiB up to it");
  parser.integer("-n,--iters", options.iterations, 1, 100'000'000, "Measured iterations per size");
  parser.integer("-w,--warmup", options.warm_up, 0, 100'000'000, "Untimed iterations before them");
  parser.flag("--cached", options.cached, "Keep another pin of the allocation alive: measures the pin cache");
  parser.mapping(options.common);
  parser.common(options.common);
  return parser.parse();
}

constexpr std::array<const char*, 5> kCalls = {"pin", "map", "get_info", "unmap", "unpin"};
using call_samples = std::array<std::vector<double>, kCalls.size()>;

// One life of a mapping; samples_ns (may be null) receives the five durations.
void one_life(const gdr_session& gdr, cu::device_ptr pointer, std::uint64_t bytes, int map_flag, call_samples* samples_ns) {
  gdr_mh_t handle{0};
  void* mapped = nullptr;
  gdr_info_t info{};
  int code = 0;
  std::size_t step_index = 0;
  const auto step = [&](auto&& call, const char* name) {
    const double taken_ns = time_once_ns([&] { code = call(); });
    check_gdr(name, code);
    if (samples_ns != nullptr) (*samples_ns)[step_index].push_back(taken_ns);
    ++step_index;
  };
  step([&] { return gdr_pin_buffer(gdr.get(), pointer, bytes, 0, 0, &handle); }, "gdr_pin_buffer");
  step([&] { return gdr_map_v2(gdr.get(), handle, &mapped, bytes, map_flag); }, "gdr_map");
  step([&] { return gdr_get_info(gdr.get(), handle, &info); }, "gdr_get_info");
  step([&] { return gdr_unmap(gdr.get(), handle, mapped, bytes); }, "gdr_unmap");
  step([&] { return gdr_unpin_buffer(gdr.get(), handle); }, "gdr_unpin_buffer");
}

void print_histogram(std::uint64_t bytes, const std::vector<double>& pin_ns) {
  std::printf("Histogram of gdr_pin_buffer latency for %" PRIu64 " bytes\n", bytes);
  for (const auto& bin : make_histogram(pin_ns, 10))
    std::printf("[%f\t-\t%f]\t%zu\n", bin.low / 1e3, bin.high / 1e3, bin.count);
  std::printf("\n");
}

void measure_size(const gdr_session& gdr, cu::device_ptr pointer, std::uint64_t bytes, const apiperf_options& options,
                  result_file& results) {
  for (std::int64_t i = 0; i < options.warm_up; ++i) one_life(gdr, pointer, bytes, options.common.map_flag, nullptr);
  call_samples samples_ns;
  for (std::int64_t i = 0; i < options.iterations; ++i) one_life(gdr, pointer, bytes, options.common.map_flag, &samples_ns);

  std::printf("Size(B)\tpin.Time(us)\tmap.Time(us)\tget_info.Time(us)\tunmap.Time(us)\tunpin.Time(us)\n");
  std::printf("%" PRIu64, bytes);
  for (const auto& one : samples_ns) std::printf("\t%f", summarize(one).mean / 1e3);
  std::printf("\n");
  print_histogram(bytes, samples_ns[0]);
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    const std::string series = format("%s_%" PRIu64, kCalls[i], bytes);
    nlohmann::json row{{"call", kCalls[i]}, {"size_bytes", bytes}, {"series", series}, {"cached", options.cached}};
    row.update(latency_fields(samples_ns[i]));
    results.add_row(std::move(row));
    results.add_samples(series, samples_ns[i]);
  }
}

// gdr_get_info as a program that polls it sees it: calls in a row, warm caches. In the stock columns it is one call right
// after a system call, which is mostly cache misses. JSON only: the stock output shape has no place for it.
void measure_repeated_info(const gdr_session& gdr, cu::device_ptr pointer, const apiperf_options& options,
                           result_file& results) {
  constexpr std::size_t kBatches = 100, kCallsPerBatch = 1000;
  const gdr_buffer buffer(gdr, pointer, GPU_PAGE_SIZE, options.common.map_flag);
  gdr_info_t info{};
  int code = 0;
  auto samples_ns = time_each_ns(2, kBatches, [&] {
    for (std::size_t i = 0; i < kCallsPerBatch; ++i) code |= gdr_get_info(gdr.get(), buffer.handle(), &info);
  });
  check_gdr("gdr_get_info", code);
  for (double& sample_ns : samples_ns) sample_ns /= kCallsPerBatch;
  nlohmann::json row{{"call", "get_info_repeated"}, {"size_bytes", GPU_PAGE_SIZE}, {"cached", options.cached}};
  row.update(latency_fields(samples_ns));
  results.add_row(std::move(row));
}

}  // namespace

int run_apiperf(const invocation& call) {
  apiperf_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "apiperf");
  const gpu_session gpu(options.common.gpu);
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  const device_memory memory(gpu, std::max<std::uint64_t>(options.max_bytes, GPU_PAGE_SIZE), options.common.alloc);
  std::printf("device ptr: 0x%" PRIx64 "\n", static_cast<std::uint64_t>(memory.get()));
  std::printf("allocated size: %" PRIu64 "\n", memory.size_bytes());
  gdr_session gdr;
  out.describe(&gpu, nullptr, cpus);
  out.file().set_parameter("max_bytes", options.max_bytes);
  out.file().set_parameter("iterations", options.iterations);
  out.file().set_parameter("warm_up", options.warm_up);
  out.file().set_parameter("cached", options.cached);
  out.file().set_parameter("alloc", to_string(options.common.alloc));
  {
    std::optional<gdr_buffer> keeper;
    if (options.cached) keeper.emplace(gdr, memory.get(), memory.size_bytes(), options.common.map_flag);
    progress line("apiperf", 16);
    std::size_t done = 0;
    for (std::uint64_t bytes = GPU_PAGE_SIZE; bytes <= memory.size_bytes(); bytes *= 2) {
      line.start_step(done++, format_size(bytes));
      measure_size(gdr, memory.get(), bytes, options, out.file());
      if (bytes > memory.size_bytes() / 2) break;
    }
    measure_repeated_info(gdr, memory.get(), options, out.file());
  }
  std::printf("closing gdrdrv\n");
  gdr.close();
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
