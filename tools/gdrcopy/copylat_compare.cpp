// SPDX-License-Identifier: Apache-2.0
// The comparison of `peerlane copylat`: four ways to move the same bytes, interleaved at every size, each verified.
//
//   peerlane   gdr_copy_to_mapping / gdr_copy_from_mapping of the library beside this program
//   baseline   GDRCopy 2.6's dispatch re-expressed (stock_baseline.hpp), on the same mapping
//   cuMemcpy   the driver's synchronous copy from and to page-locked memory
//   async+poll cuMemcpyAsync, then cuStreamWriteValue32 to a page-locked word that the CPU polls
//
// What "done" means differs and is part of the result: a CPU write is done when the CPU has let go of it (store fence), the
// driver's copies when the data is in GPU memory; reads are done when the data is in host memory for all four.
#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "measure/text_table.hpp"
#include "tools/gdrcopy/copylat.hpp"
#include "tools/gdrcopy/stock_baseline.hpp"

namespace pl::tools {
namespace {

constexpr std::uint64_t kPollTimeoutNs = 10'000'000'000;  // a copy of the largest size takes under a second

// cuMemcpyAsync whose end the CPU sees in a word of host memory.
class polled_copy {
 public:
  explicit polled_copy(const gpu_session& gpu) : gpu_(gpu), stream_(gpu), word_(gpu, 64) { *word() = 0; }

  void to_device(cu::device_ptr device, const void* host, std::uint64_t bytes) {
    gpu_.check(gpu_.cuda().cuMemcpyHtoDAsync_v2(device, host, bytes, stream_.get()), "cuMemcpyHtoDAsync");
    finish();
  }
  void to_host(void* host, cu::device_ptr device, std::uint64_t bytes) {
    gpu_.check(gpu_.cuda().cuMemcpyDtoHAsync_v2(host, device, bytes, stream_.get()), "cuMemcpyDtoHAsync");
    finish();
  }

 private:
  volatile std::uint32_t* word() const { return static_cast<volatile std::uint32_t*>(word_.data()); }
  void finish() {
    const std::uint32_t mark = ++sequence_;
    gpu_.check(gpu_.cuda().cuStreamWriteValue32_v2(stream_.get(), word_.device_address(), mark, 0), "cuStreamWriteValue32");
    const std::uint64_t begin_ns = monotonic_ns();
    for (std::uint64_t spin = 1; *word() != mark; ++spin)
      if ((spin & 0xFFF) == 0 && monotonic_ns() - begin_ns > kPollTimeoutNs)
        throw tool_failure("cuStreamWriteValue32 did not arrive within 10 s: the GPU hangs or another process blocks it");
    std::atomic_thread_fence(std::memory_order_acquire);
  }
  const gpu_session& gpu_;
  gpu_stream stream_;
  host_memory word_;
  std::uint32_t sequence_ = 0;
};

// CPU copies are short: eight in a turn. The driver's take microseconds and disturb nobody when repeated.
constexpr std::size_t kCpuTurn = 8;
constexpr std::size_t kDriverTurn = 2;
// Writes up to 4 KiB are timed in batches, and the batch divided (samples.hpp): p99 is of batch means there.
constexpr std::size_t kWriteBatch = 16;

std::vector<contender> writers(copy_bench& bench, polled_copy& polled, std::uint64_t bytes) {
  const auto handle = bench.buffer.handle();
  void* mapped = bench.buffer.user_pointer();
  const void* host = bench.host.data();
  const auto device = bench.memory.get();
  const std::size_t turn = bytes <= 4096 ? kCpuTurn : 1;
  const std::size_t calls = bytes <= 4096 ? kWriteBatch : 1;
  std::vector<contender> out;
  out.push_back({"peerlane",
                 [=] {
                   if (gdr_copy_to_mapping(handle, mapped, host, bytes) != 0)
                     throw tool_failure(gdr_error_text("gdr_copy_to_mapping", EINVAL));
                 },
                 turn, calls});
  out.push_back({"baseline", [=] { baseline::copy_to_mapping(mapped, host, bytes); }, turn, calls});
  out.push_back({"cuMemcpy",
                 [=, &bench] { bench.gpu.check(bench.gpu.cuda().cuMemcpyHtoD_v2(device, host, bytes), "cuMemcpyHtoD"); },
                 kDriverTurn});
  out.push_back({"async+poll", [=, &polled] { polled.to_device(device, host, bytes); }, kDriverTurn});
  return out;
}

std::vector<contender> readers(copy_bench& bench, polled_copy& polled, std::uint64_t bytes) {
  const auto handle = bench.buffer.handle();
  const void* mapped = bench.buffer.user_pointer();
  void* host = bench.host.data();
  const auto device = bench.memory.get();
  const std::size_t turn = bytes <= 1024 ? kCpuTurn : 1;
  std::vector<contender> out;
  out.push_back({"peerlane",
                 [=] {
                   if (gdr_copy_from_mapping(handle, host, mapped, bytes) != 0)
                     throw tool_failure(gdr_error_text("gdr_copy_from_mapping", EINVAL));
                 },
                 turn});
  out.push_back({"baseline", [=] { baseline::copy_from_mapping(host, mapped, bytes); }, turn});
  out.push_back({"cuMemcpy",
                 [=, &bench] { bench.gpu.check(bench.gpu.cuda().cuMemcpyDtoH_v2(host, device, bytes), "cuMemcpyDtoH"); },
                 kDriverTurn});
  out.push_back({"async+poll", [=, &polled] { polled.to_host(host, device, bytes); }, kDriverTurn});
  return out;
}

// Each contender moves data of its own once and is verified, before anything is timed.
void verify_writers(copy_bench& bench, std::span<contender> all, std::uint64_t bytes) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    bench.fill_host(static_cast<unsigned>(3 + i), bytes);
    all[i].operation();
    bench.verify_device(0, bytes, "write by " + all[i].name);
  }
}

void verify_readers(copy_bench& bench, std::span<contender> all, std::uint64_t bytes) {
  for (auto& one : all) {
    std::memset(bench.host.data(), 0x5A, bytes);
    one.operation();
    bench.verify_device(0, bytes, "read by " + one.name);
  }
}

text_table empty_table() {
  text_table::column left{"size", text_table::align::right};
  return text_table({left,
                     {"peerlane p50"},
                     {"p99"},
                     {"min"},
                     {"baseline p50"},
                     {"p99"},
                     {"min"},
                     {"cuMemcpy p50"},
                     {"p99"},
                     {"async+poll p50"},
                     {"p99"},
                     {"baseline/peerlane"},
                     {"cuMemcpy/peerlane"}});
}

void report_size(const char* direction, std::uint64_t bytes, std::span<const contender> all, text_table& table,
                 result_file& results) {
  const auto us = [](double ns) { return format("%.3f", ns / 1e3); };
  std::vector<summary> sums;
  for (const auto& one : all) {
    sums.push_back(summarize(one.samples_ns));
    const std::string series = format("%s_%s_%" PRIu64, direction, one.name.c_str(), bytes);
    nlohmann::json row{{"direction", direction}, {"contender", one.name}, {"size_bytes", bytes}, {"series", series}};
    row.update(latency_fields(one.samples_ns));
    row["ratio_p50_to_peerlane"] = sums[0].p50 > 0 ? sums.back().p50 / sums[0].p50 : 0.0;
    results.add_row(std::move(row));
    results.add_samples(series, one.samples_ns);
  }
  const auto ratio = [&](std::size_t contender_index) {
    return sums[0].p50 > 0 ? format("%.2f", sums[contender_index].p50 / sums[0].p50) : "-";
  };
  table.add_row({format_size(bytes), us(sums[0].p50), us(sums[0].p99), us(sums[0].min), us(sums[1].p50), us(sums[1].p99),
                 us(sums[1].min), us(sums[2].p50), us(sums[2].p99), us(sums[3].p50), us(sums[3].p99), ratio(1), ratio(2)});
}

}  // namespace

void run_comparison(copy_bench& bench, const copylat_options& options, result_file& results) {
  results.set_parameter("budget_ms", options.budget_ms);
  results.set_parameter("baseline_write_routine", baseline::write_routine_name());
  results.set_parameter("baseline_read_routine", baseline::read_routine_name());
  results.add_note("baseline: GDRCopy 2.6's copy dispatch re-expressed from its described behaviour, on the same mapping");
  results.add_note("a CPU write is timed until its store fence; cuMemcpy and async+poll until the data is in GPU memory");
  polled_copy polled(bench.gpu);
  const auto sizes = options.sizes.empty() ? powers_of_two_up_to(options.max_bytes) : options.sizes;
  progress line("copylat", sizes.size() * 2);
  text_table tables[2] = {empty_table(), empty_table()};
  std::size_t done = 0;
  for (const bool is_write : {true, false}) {
    const auto iterations = static_cast<std::size_t>(is_write ? options.write_iterations : options.read_iterations);
    for (const auto bytes : sizes) {
      line.start_step(done++, format("%s %s", is_write ? "write" : "read", format_size(bytes).c_str()));
      auto all = is_write ? writers(bench, polled, bytes) : readers(bench, polled, bytes);
      if (is_write) verify_writers(bench, all, bytes);
      else verify_readers(bench, all, bytes);
      run_interleaved(all, {.warm_up_rounds = 2,
                            .rounds = std::max<std::size_t>(1, iterations / all[0].turn),
                            .budget_ns = static_cast<std::uint64_t>(options.budget_ms) * 1'000'000});
      report_size(is_write ? "write" : "read", bytes, all, tables[is_write ? 0 : 1], results);
    }
  }
  line.start_step(done, "done");
  std::printf("\nwrite, host to GPU, microseconds (baseline: GDRCopy 2.6 dispatch re-expressed, %s)\n%s",
              baseline::write_routine_name(), tables[0].render().c_str());
  std::printf("\nread, GPU to host, microseconds (baseline: GDRCopy 2.6 dispatch re-expressed, %s)\n%s\n",
              baseline::read_routine_name(), tables[1].render().c_str());
}

void run_alignments(copy_bench& bench, const copylat_options& options, result_file& results) {
  const auto largest = *std::max_element(options.alignment_sizes.begin(), options.alignment_sizes.end());
  if (largest + 64 > bench.memory.size_bytes())
    throw tool_failure(format("--sizes: %s does not fit the buffer, enlarge it with -s", format_size(largest).c_str()));
  bench.fill_host(7);
  bench.gpu.check(bench.gpu.cuda().cuMemcpyHtoD_v2(bench.memory.get(), bench.host.data(), bench.host.size_bytes()),
                  "cuMemcpyHtoD");
  std::vector<unsigned char> target(largest + 64);
  text_table table({{"size"}, {"peerlane best p50"}, {"worst p50"}, {"at"}, {"baseline best p50"}, {"worst p50"}, {"at"}});
  progress line("alignments", options.alignment_sizes.size());
  for (std::size_t step = 0; step < options.alignment_sizes.size(); ++step) {
    const auto bytes = options.alignment_sizes[step];
    line.start_step(step, format_size(bytes));
    struct extreme {
      double best = 1e300, worst = 0;
      unsigned worst_at = 0;
    } extremes[2];
    for (unsigned offset = 0; offset < 64; ++offset) {
      const unsigned char* mapped = bench.buffer.user_pointer() + offset;
      std::vector<contender> both;
      both.push_back(
          {"peerlane", [&] { gdr_copy_from_mapping(bench.buffer.handle(), target.data(), mapped, bytes); }, kCpuTurn});
      both.push_back({"baseline", [&] { baseline::copy_from_mapping(target.data(), mapped, bytes); }, kCpuTurn});
      for (auto& one : both) {
        std::fill(target.begin(), target.end(), static_cast<unsigned char>(0x5A));
        one.operation();
        if (std::memcmp(target.data(), bench.host.bytes() + offset, bytes) != 0)
          throw tool_failure(
              format("read of %" PRIu64 " bytes at alignment %u by %s: mismatch", bytes, offset, one.name.c_str()));
      }
      run_interleaved(both, {.warm_up_rounds = 1,
                             .rounds = static_cast<std::size_t>(std::max<std::int64_t>(options.read_iterations / 8, 5)),
                             .budget_ns = 200'000'000});
      for (std::size_t i = 0; i < 2; ++i) {
        nlohmann::json row{
            {"direction", "read"}, {"contender", both[i].name}, {"size_bytes", bytes}, {"device_alignment_bytes", offset}};
        row.update(latency_fields(both[i].samples_ns));
        const double p50 = row["latency_ns_p50"];
        extremes[i].best = std::min(extremes[i].best, p50);
        if (p50 > extremes[i].worst) extremes[i].worst = p50, extremes[i].worst_at = offset;
        results.add_row(std::move(row));
      }
    }
    table.add_row({format_size(bytes), format("%.3f", extremes[0].best / 1e3), format("%.3f", extremes[0].worst / 1e3),
                   format("%u", extremes[0].worst_at), format("%.3f", extremes[1].best / 1e3),
                   format("%.3f", extremes[1].worst / 1e3), format("%u", extremes[1].worst_at)});
  }
  std::printf("\nread at every device alignment 0..63, microseconds (best and worst alignment by median)\n%s\n",
              table.render().c_str());
}

namespace {

struct batch_variant {
  const char* name;
  std::int64_t flush_every;  // 0: once at the end; 1: every write is fenced
  bool is_baseline;
};

double batch_seconds(copy_bench& bench, const copylat_options& options, const batch_variant& variant) {
  const std::uint64_t bytes = options.batch_bytes;
  const std::uint64_t slots = GPU_PAGE_SIZE / bytes;
  const auto handle = bench.buffer.handle();
  int failed = 0;
  const std::uint64_t begin = ticks_ordered();
  for (std::int64_t i = 0, slot = 0; i < options.batch_messages; ++i) {
    const std::uint64_t offset = static_cast<std::uint64_t>(slot) * bytes;
    if (++slot == static_cast<std::int64_t>(slots)) slot = 0;
    void* device = bench.buffer.user_pointer() + offset;
    const void* host = bench.host.bytes() + offset;
    if (variant.is_baseline) {
      baseline::copy_to_mapping(device, host, bytes);
    } else if (variant.flush_every == 1) {
      failed |= gdr_copy_to_mapping(handle, device, host, bytes);
    } else {
      failed |= gdr_copy_to_mapping_unfenced(handle, device, host, bytes);
      if (variant.flush_every != 0 && i % variant.flush_every == 0) failed |= gdr_flush_mapping(handle);
    }
  }
  failed |= gdr_flush_mapping(handle);
  const std::uint64_t end = ticks_ordered();
  check_gdr("gdr_copy_to_mapping_unfenced", failed);
  return ticks_to_ns(end - begin) / 1e9;
}

}  // namespace

void run_batch(copy_bench& bench, const copylat_options& options, result_file& results) {
  constexpr batch_variant kVariants[] = {{"unfenced, one flush at the end", 0, false},
                                         {"unfenced, flush every 64", 64, false},
                                         {"unfenced, flush every 16", 16, false},
                                         {"fenced every write", 1, false},
                                         {"baseline (fences every write)", 1, true}};
  results.set_parameter("batch_bytes", options.batch_bytes);
  results.set_parameter("batch_messages", options.batch_messages);
  results.add_note("the rate is that of one core handing messages to the bus in order of slots of a 64 KiB window");
  text_table table({{"writes", text_table::align::left}, {"million/s"}, {"ns each"}, {"MB/s"}});
  constexpr int kRepeats = 5;  // the median repeat is reported, all are in the result file
  const std::uint64_t window = GPU_PAGE_SIZE / options.batch_bytes * options.batch_bytes;
  const std::uint64_t touched = std::min(window, options.batch_bytes * static_cast<std::uint64_t>(options.batch_messages));
  for (const auto& variant : kVariants) {
    bench.fill_host(variant.is_baseline ? 91u : 50u + static_cast<unsigned>(variant.flush_every));
    std::vector<double> each_ns(kRepeats);
    for (auto& one_ns : each_ns)
      one_ns = batch_seconds(bench, options, variant) * 1e9 / static_cast<double>(options.batch_messages);
    bench.verify_device(0, touched, variant.name);
    const double median_ns = summarize(each_ns).p50;
    table.add_row({variant.name, format("%.2f", 1e3 / median_ns), format("%.1f", median_ns),
                   format("%.0f", static_cast<double>(options.batch_bytes) * 1e3 / median_ns)});
    results.add_row({{"writes", variant.name},
                     {"flush_every", variant.flush_every},
                     {"size_bytes", options.batch_bytes},
                     {"messages", options.batch_messages},
                     {"message_rate_million_per_s", 1e3 / median_ns},
                     {"time_per_message_ns", median_ns},
                     {"time_per_message_ns_repeats", each_ns}});
  }
  std::printf("\nmessage rate of %s writes, one core\n%s\n", format_size(options.batch_bytes).c_str(),
              table.render().c_str());
}

}  // namespace pl::tools
