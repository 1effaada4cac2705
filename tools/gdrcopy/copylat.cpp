// SPDX-License-Identifier: Apache-2.0
// copylat: latency of CPU copies through a mapping.
//
// Under GDRCopy's names (or with --stock): the stock output shape. Every copy is timed alone and the clock's cost is
// removed, so a read's median is the read (the stock tool times the clock with it). As `peerlane copylat`: our copies, the
// stock dispatch re-expressed as a baseline, cuMemcpy, and cuMemcpyAsync with a polled word, interleaved in one run.
#include "tools/gdrcopy/copylat.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"

namespace pl::tools {
namespace {

std::optional<int> parse(const invocation& call, copylat_options& options) {
  command_parser parser(call, "Measures the latency of CPU copies to and from GPU memory through a mapping");
  parser.size("-s,--size", options.max_bytes, "Largest copy; sizes are doubled from 1 byte up to it");
  parser.integer("-w,--write-iters", options.write_iterations, 1, 1'000'000'000, "Number of writes per size");
  parser.integer("-r,--read-iters", options.read_iterations, 1, 1'000'000'000, "Number of reads per size");
  parser.flag("-c,--cumemcpy", options.with_cu_memcpy, "With --stock: also measure cuMemcpy (the comparison always does)");
  parser.flag("-C,--cold", options.cold,
              "Cold CPU cache: the GPU rewrites the data before each read (caching mappings only)");
  std::vector<std::string> sizes;
  options.stock_shape = call.drop_in;
  parser.flag("--stock", options.stock_shape, "Print the output of GDRCopy's tool instead of the comparison");
  parser.flag("--alignments", options.alignments,
              "Measure reads at every device alignment 0..63, instead of the comparison");
  parser.flag("--batch", options.batch,
              "Measure the message rate of unfenced writes on one core, instead of the comparison");
  parser.list("--sizes", sizes, "Sizes of --alignments [4,8,16,32,64,128,256,512,960,1K]");
  parser.size("--batch-bytes", options.batch_bytes, "Size of a message in --batch");
  parser.integer("--batch-messages", options.batch_messages, 1, 1'000'000'000, "Number of messages in --batch");
  parser.integer("--budget-ms", "MILLISECONDS", options.budget_ms, 1, 3'600'000,
                 "Time per size and direction of the comparison, ms");
  parser.mapping(options.common);
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  if (options.max_bytes == 0) throw tool_failure("-s 0: the buffer must have at least one byte");
  if (options.batch_bytes == 0 || options.batch_bytes > GPU_PAGE_SIZE)
    throw tool_failure("--batch-bytes must be from 1 to 64K");
  if (!sizes.empty()) options.alignment_sizes.clear();
  for (const auto& text : sizes) {
    const auto size = parse_size(text);
    if (!size || *size == 0) throw tool_failure(format("--sizes: \"%s\" is not a size", text.c_str()));
    options.alignment_sizes.push_back(*size);
  }
  return std::nullopt;
}

void print_head(const char* test, std::int64_t iterations) {
  std::printf("\n%s num iters for each size: %" PRId64 "\n", test, iterations);
}
void print_columns() { std::printf("%-21s\t%8s\t%s\t%s\n", "Test", "Size(B)", "Median Time(us)", "Min. Time(us)"); }

void print_row(const char* test, std::uint64_t bytes, std::span<const double> samples_ns, result_file& results) {
  const summary all = summarize(samples_ns);
  std::printf("%-21s\t%8" PRIu64 "\t%11.4f\t%11.4f\n", test, bytes, all.p50 / 1e3, all.min / 1e3);
  const std::string series = format("%s_%" PRIu64, test, bytes);
  nlohmann::json row{{"test", test}, {"size_bytes", bytes}, {"series", series}};
  row.update(latency_fields(samples_ns));
  results.add_row(std::move(row));
  results.add_samples(series, samples_ns);
}

template <class Copy>
void stock_section(const char* test, const char* call, std::int64_t iterations, const copylat_options& options,
                   result_file& results, Copy&& copy) {
  print_columns();
  for (const auto bytes : powers_of_two_up_to(options.max_bytes)) {
    int failed = 0;
    const auto warm_up = static_cast<std::size_t>(std::min<std::int64_t>(iterations, 10));
    const auto samples_ns = time_each_ns(warm_up, static_cast<std::size_t>(iterations), [&] { failed |= copy(bytes); });
    if (failed != 0)
      throw tool_failure(format("%s of %" PRIu64 " bytes failed: %s", call, bytes, errno_text(failed).c_str()));
    print_row(test, bytes, samples_ns, results);
  }
}

void cold_reads(copy_bench& bench, const copylat_options& options, result_file& results) {
  if (bench.buffer.info().mapping_type != GDR_MAPPING_TYPE_CACHING)
    throw tool_failure(format("-C is for caching mappings; this one is %s (never cached)", bench.buffer.mapping_type()));
  print_columns();
  for (const auto bytes : powers_of_two_up_to(options.max_bytes)) {
    std::vector<double> samples_ns;
    for (std::int64_t i = 0; i < options.read_iterations; ++i) {
      bench.gpu.check(bench.gpu.cuda().cuMemsetD8_v2(bench.memory.get(), static_cast<unsigned char>(i), bytes),
                      "cuMemsetD8");
      bench.gpu.synchronize();
      samples_ns.push_back(time_once_ns(
          [&] { gdr_copy_from_mapping(bench.buffer.handle(), bench.host.data(), bench.buffer.user_pointer(), bytes); }));
    }
    print_row("gdr_copy_from_mapping", bytes, samples_ns, results);
  }
}

}  // namespace

std::vector<std::uint64_t> powers_of_two_up_to(std::uint64_t limit) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t size = 1; size <= limit; size *= 2) {
    out.push_back(size);
    if (size > limit / 2) break;
  }
  return out;
}

copy_bench::copy_bench(const gpu_session& gpu_in, const copylat_options& options, std::uint64_t bytes)
    : gpu(gpu_in),
      memory(gpu_in, bytes, options.common.alloc),
      buffer(gdr, memory.get(), memory.size_bytes(), options.common.map_flag),
      host(gpu_in, memory.size_bytes()) {
  fill_host(1);
}

void copy_bench::fill_host(unsigned seed, std::uint64_t bytes) const {
  const std::uint64_t end = std::min(bytes, host.size_bytes());
  for (std::uint64_t i = 0; i < end; ++i) host.bytes()[i] = static_cast<unsigned char>(i * 131 + i / 253 + seed * 17);
}

void copy_bench::verify_device(std::uint64_t offset, std::uint64_t bytes, const std::string& description) const {
  std::vector<unsigned char> seen(bytes);
  gpu.check(gpu.cuda().cuMemcpyDtoH_v2(seen.data(), memory.get() + offset, bytes), "cuMemcpyDtoH");
  const auto [difference, wanted] = std::mismatch(seen.begin(), seen.end(), host.bytes() + offset);
  if (difference != seen.end())
    throw tool_failure(format("%s of %" PRIu64 " bytes: mismatch at byte %td, 0x%02x instead of 0x%02x", description.c_str(),
                              bytes, difference - seen.begin(), *difference, *wanted));
}

void run_stock_shape(copy_bench& bench, const copylat_options& options, result_file& results) {
  const auto& cuda = bench.gpu.cuda();
  if (options.with_cu_memcpy) {
    print_head("cuMemcpy_H2D", options.write_iterations);
    stock_section("cuMemcpy_H2D", "cuMemcpyHtoD", options.write_iterations, options, results, [&](std::uint64_t bytes) {
      return cuda.cuMemcpyHtoD_v2(bench.memory.get(), bench.host.data(), bytes) != 0 ? EIO : 0;
    });
    print_head("cuMemcpy_D2H", options.read_iterations);
    stock_section("cuMemcpy_D2H", "cuMemcpyDtoH", options.read_iterations, options, results, [&](std::uint64_t bytes) {
      return cuda.cuMemcpyDtoH_v2(bench.host.data(), bench.memory.get(), bytes) != 0 ? EIO : 0;
    });
    bench.fill_host(2);
  }
  print_head("gdr_copy_to_mapping", options.write_iterations);
  std::printf(
      "WARNING: Measuring the API invocation overhead as observed by the CPU. Data might not be ordered all the way to "
      "the GPU internal visibility.\n");
  stock_section("gdr_copy_to_mapping", "gdr_copy_to_mapping", options.write_iterations, options, results,
                [&](std::uint64_t bytes) {
                  return gdr_copy_to_mapping(bench.buffer.handle(), bench.buffer.user_pointer(), bench.host.data(), bytes);
                });
  const std::uint64_t largest = powers_of_two_up_to(options.max_bytes).back();
  bench.verify_device(0, largest, "gdr_copy_to_mapping");
  print_head("gdr_copy_from_mapping", options.read_iterations);
  if (options.cold) return cold_reads(bench, options, results);
  std::memset(bench.host.data(), 0x5A, bench.host.size_bytes());
  stock_section("gdr_copy_from_mapping", "gdr_copy_from_mapping", options.read_iterations, options, results,
                [&](std::uint64_t bytes) {
                  return gdr_copy_from_mapping(bench.buffer.handle(), bench.host.data(), bench.buffer.user_pointer(), bytes);
                });
  bench.verify_device(0, largest, "gdr_copy_from_mapping");
  std::printf("\n");
}

int run_copylat(const invocation& call) {
  copylat_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "copylat");
  const gpu_session gpu(options.common.gpu);
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  copy_bench bench(gpu, options, std::max<std::uint64_t>(options.max_bytes, 2 * GPU_PAGE_SIZE));
  std::printf("device ptr: 0x%" PRIx64 "\n", static_cast<std::uint64_t>(bench.memory.get()));
  std::printf("allocated size: %" PRIu64 "\n", bench.memory.size_bytes());
  std::printf("gpu alloc fn: %s\n\n", to_string(options.common.alloc));
  print_mapping_lines(bench.buffer);
  out.describe(&gpu, &bench.buffer, cpus);
  out.file().set_parameter("max_bytes", options.max_bytes);
  out.file().set_parameter("write_iterations", options.write_iterations);
  out.file().set_parameter("read_iterations", options.read_iterations);
  out.file().set_parameter("alloc", to_string(options.common.alloc));
  out.file().set_parameter("cold", options.cold);

  if (options.stock_shape) run_stock_shape(bench, options, out.file());
  if (options.alignments) run_alignments(bench, options, out.file());
  if (options.batch) run_batch(bench, options, out.file());
  if (!options.stock_shape && !options.alignments && !options.batch) run_comparison(bench, options, out.file());

  close_with_lines(bench.buffer, bench.gdr);
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
