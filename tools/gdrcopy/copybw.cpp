// SPDX-License-Identifier: Apache-2.0
// copybw: bandwidth of CPU copies through a mapping, in the output shape of gdrcopy_copybw.
//
// The figures behind "BW:" are MiB/s although the label says MB/s: programs that parse the stock tool expect that. The
// result file has both, named by their units. All copies of a size are timed together after a warm-up copy (posted writes
// are only bandwidth when they follow each other); each direction is then verified over the whole range against CUDA's own
// copy, and a mismatch fails the program.
#include <gdrapi.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "tools/common/report.hpp"

namespace pl::tools {
namespace {

struct copybw_options {
  common_options common;
  std::uint64_t size_bytes = 128 * 1024;
  std::uint64_t copy_bytes = 0;  // 0: as size_bytes
  std::uint64_t offset_bytes = 0;
  bool sweep = false;
  std::int64_t write_iterations = 10000;
  std::int64_t read_iterations = 100;
};

std::optional<int> parse(const invocation& call, copybw_options& options) {
  command_parser parser(call, "Measures the bandwidth of CPU copies to and from GPU memory through a mapping");
  parser.size("-s,--size", options.size_bytes, "Size of the GPU buffer");
  parser.size("-c,--copy-size", options.copy_bytes, "Size of each copy, 0: the whole buffer");
  parser.size("-o,--offset", options.offset_bytes, "Offset of the copies in the buffer, a multiple of 4");
  parser.flag("-l,--sweep", options.sweep, "Measure all powers of two from 1 byte up to the copy size");
  parser.integer("-w,--write-iters", options.write_iterations, 1, 1'000'000'000, "Number of writes");
  parser.integer("-r,--read-iters", options.read_iterations, 1, 1'000'000'000, "Number of reads");
  parser.mapping(options.common);
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  const auto refuse = [&](const std::string& reason) {
    throw tool_failure(reason + "; -h lists the options");
    return kExitFailed;
  };
  if (options.size_bytes == 0) return refuse("-s 0: the buffer must have at least one byte");
  if (options.offset_bytes % 4 != 0) return refuse("-o must be a multiple of 4");
  if (options.offset_bytes >= options.size_bytes) return refuse("-o must lie inside the buffer (-s)");
  if (options.copy_bytes == 0) options.copy_bytes = options.size_bytes - options.offset_bytes;
  if (options.copy_bytes > options.size_bytes - options.offset_bytes)
    return refuse("-c and -o reach beyond the buffer (-s)");
  return std::nullopt;
}

class bandwidth_run {
 public:
  bandwidth_run(const gpu_session& gpu, const gdr_buffer& buffer, const copybw_options& options, result_file& results)
      : gpu_(gpu),
        buffer_(buffer),
        options_(options),
        results_(results),
        source_(gpu, options.copy_bytes),
        target_(options.copy_bytes) {
    for (std::uint64_t i = 0; i < options.copy_bytes; ++i)
      source_.bytes()[i] = static_cast<unsigned char>(i * 131 + i / 251 + 7);
  }

  // False on a mismatch.
  bool measure(std::uint64_t bytes) {
    device_ = buffer_.user_pointer() + options_.offset_bytes;
    std::printf("writing test, size=%" PRIu64 " offset=%" PRIu64 " num_iters=%" PRId64 "\n", bytes, options_.offset_bytes,
                options_.write_iterations);
    const double write_s = timed("gdr_copy_to_mapping", options_.write_iterations,
                                 [&] { return gdr_copy_to_mapping(buffer_.handle(), device_, source_.data(), bytes); });
    print("write", bytes, options_.write_iterations, write_s);
    bool good = verify_write(bytes);
    std::printf("reading test, size=%" PRIu64 " offset=%" PRIu64 " num_iters=%" PRId64 "\n", bytes, options_.offset_bytes,
                options_.read_iterations);
    std::fill(target_.begin(), target_.end(), static_cast<unsigned char>(0xA5));
    const double read_s = timed("gdr_copy_from_mapping", options_.read_iterations,
                                [&] { return gdr_copy_from_mapping(buffer_.handle(), target_.data(), device_, bytes); });
    print("read", bytes, options_.read_iterations, read_s);
    good = compare("read", bytes, target_.data()) && good;
    return good;
  }

 private:
  template <class Copy>
  double timed(const char* call, std::int64_t iterations, Copy&& copy) {
    check_gdr(call, copy());  // warm-up: page faults, instruction caches
    int failed = 0;
    const std::uint64_t begin = ticks_ordered();
    for (std::int64_t i = 0; i < iterations; ++i) failed |= copy();
    const std::uint64_t end = ticks_ordered();
    check_gdr(call, failed);
    return std::max(ticks_to_ns(end - begin - std::min(end - begin, clock_cost_ticks())), 1.0) / 1e9;
  }

  void print(const char* direction, std::uint64_t bytes, std::int64_t iterations, double seconds) {
    const double bytes_per_s = static_cast<double>(bytes) * static_cast<double>(iterations) / seconds;
    std::printf("%s BW: %gMB/s\n", direction, bytes_per_s / (1024.0 * 1024.0));
    results_.add_row({{"direction", direction},
                      {"size_bytes", bytes},
                      {"offset_bytes", options_.offset_bytes},
                      {"iterations", iterations},
                      {"seconds", seconds},
                      {"bandwidth_mib_per_s", bytes_per_s / (1024.0 * 1024.0)},
                      {"bandwidth_mb_per_s", bytes_per_s / 1e6}});
  }

  bool verify_write(std::uint64_t bytes) {
    std::vector<unsigned char> seen(bytes);
    gpu_.check(
        gpu_.cuda().cuMemcpyDtoH_v2(seen.data(), buffer_.info().va + buffer_.page_offset() + options_.offset_bytes, bytes),
        "cuMemcpyDtoH");
    return compare("write", bytes, seen.data());
  }

  bool compare(const char* direction, std::uint64_t bytes, const unsigned char* seen) {
    const auto* wanted = source_.bytes();
    const auto [difference, other] = std::mismatch(seen, seen + bytes, wanted);
    if (difference == seen + bytes) return true;
    const std::string text = format("%s of %" PRIu64 " bytes: mismatch at byte %td, 0x%02x instead of 0x%02x", direction,
                                    bytes, difference - seen, *difference, *other);
    std::fprintf(stderr, "%s\n", text.c_str());
    results_.add_note(text);
    return false;
  }

  const gpu_session& gpu_;
  const gdr_buffer& buffer_;
  const copybw_options& options_;
  result_file& results_;
  host_memory source_;
  std::vector<unsigned char> target_;
  unsigned char* device_ = nullptr;
};

// Powers of two up to and including the largest that fits (the stock tool stops one short), then the size itself.
std::vector<std::uint64_t> sizes_of(const copybw_options& options) {
  std::vector<std::uint64_t> sizes;
  if (!options.sweep) return {options.copy_bytes};
  for (std::uint64_t size = 1; size <= options.copy_bytes; size *= 2) {
    sizes.push_back(size);
    if (size > options.copy_bytes / 2) break;
  }
  return sizes;
}

}  // namespace

int run_copybw(const invocation& call) {
  copybw_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "copybw");
  const gpu_session gpu(options.common.gpu);
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());

  std::printf("testing size: %" PRIu64 "\n", options.copy_bytes);
  const device_memory memory(gpu, options.size_bytes, options.common.alloc);
  std::printf("rounded size: %" PRIu64 "\n", memory.size_bytes());
  std::printf("gpu alloc fn: %s\n", to_string(options.common.alloc));
  std::printf("device ptr: %" PRIx64 "\n", static_cast<std::uint64_t>(memory.get()));
  gdr_session gdr;
  gdr_buffer buffer(gdr, memory.get(), memory.size_bytes(), options.common.map_flag);
  print_mapping_lines(buffer);
  out.describe(&gpu, &buffer, cpus);
  out.file().set_parameter("size_bytes", options.size_bytes);
  out.file().set_parameter("alloc", to_string(options.common.alloc));
  out.file().add_note("the text output prints MiB/s under the label MB/s, as GDRCopy's tool does");

  bool good = true;
  {
    const auto sizes = sizes_of(options);
    bandwidth_run run(gpu, buffer, options, out.file());
    progress line("copybw", sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      line.start_step(i, format_size(sizes[i]));
      good = run.measure(sizes[i]) && good;
    }
  }
  close_with_lines(buffer, gdr);
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
