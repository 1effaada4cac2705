// SPDX-License-Identifier: Apache-2.0
// pplat: round trip between the CPU and a running kernel, in the output shape of gdrcopy_pplat.
//
//      CPU                                       GPU (kernels/pplat.cu)
//      data[..] = f(i)          --- -D ---->
//      to_gpu[every block] = i  --- -G ---->     each block polls its own word, checks its part of the data
//      polls to_cpu[every block] <-- -C ----     answers in its own word
//
// Mode 1 turns the roles around. Flags are 32-bit words, one for each block, next to each other, all written in one copy;
// the data is written and fenced before the flags. Every wait is bounded (-u), on both sides: when the CPU gives up it
// tells the kernel to leave.
#include "tools/gdrcopy/pplat.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>

#include "base/text.hpp"
#include "measure/samples.hpp"
#include "measure/text_table.hpp"
#include "tools/common/kernel_module.hpp"

namespace pl::tools {
namespace {

constexpr std::uint32_t kReady = 1;  // as in kernels/pplat.cu
constexpr std::uint32_t kAbort = 0xFFFFFFFFu;
constexpr std::int64_t kMaxBlocks = 1024;
constexpr std::uint64_t kFlagBytes = kMaxBlocks * 4;
constexpr std::uint64_t kDataAt = 4 * kFlagBytes;  // flags of either direction lie before it

std::uint32_t data_word(std::uint32_t value, std::uint32_t index) { return value * 2654435761u + index; }

// Memory that both sides see, reached by the CPU either through the mapping or directly.
struct shared_place {
  cu::device_ptr device = 0;
  unsigned char* cpu = nullptr;
  gdr_mh_t handle{0};
  bool through_mapping = false;

  void store(std::uint64_t offset, const void* source, std::size_t bytes) const {
    if (through_mapping) {
      check_gdr("gdr_copy_to_mapping", gdr_copy_to_mapping(handle, cpu + offset, source, bytes));
    } else {
      std::memcpy(cpu + offset, source, bytes);
      std::atomic_thread_fence(std::memory_order_release);
    }
  }
  void load(std::uint64_t offset, void* target, std::size_t bytes) const {
    if (through_mapping) {
      check_gdr("gdr_copy_from_mapping", gdr_copy_from_mapping(handle, target, cpu + offset, bytes));
    } else {
      std::atomic_thread_fence(std::memory_order_acquire);
      std::memcpy(target, cpu + offset, bytes);
    }
  }
};

class ping_pong {
 public:
  ping_pong(const gpu_session& gpu, const pplat_options& options, const gdr_buffer& buffer)
      : gpu_(gpu),
        options_(options),
        blocks_(static_cast<std::uint32_t>(options.blocks)),
        host_(gpu, kDataAt + std::max<std::uint64_t>(options.data_bytes, 64)),
        results_(gpu, 64),
        stream_(gpu),
        module_(gpu),
        flags_(blocks_) {
    const auto place = [&](bool in_host, std::uint64_t offset) {
      if (in_host) return shared_place{host_.device_address() + offset, host_.bytes() + offset, {0}, false};
      return shared_place{buffer.info().va + buffer.page_offset() + offset, buffer.user_pointer() + offset, buffer.handle(),
                          true};
    };
    to_gpu_ = place(options.to_gpu_in_host_memory, 0);
    to_cpu_ = place(options.to_cpu_in_host_memory, 2 * kFlagBytes);
    data_ = place(options.data_in_host_memory, kDataAt);
    std::memset(host_.data(), 0, host_.size_bytes());
    std::memset(results_.data(), 0, results_.size_bytes());
    gpu.check(gpu.cuda().cuMemsetD8_v2(buffer.info().va + buffer.page_offset(), 0, kDataAt), "cuMemsetD8");
    gpu.synchronize();
    words_.resize(options.data_bytes / 4);
  }

  pplat_outcome run() {
    const char* kernel = options_.gpu_produces ? "pplat_produce" : "pplat_consume";
    const auto timeout_ns = static_cast<std::uint64_t>(options_.timeout_s) * 1'000'000'000;
    module_.launch(kernel, blocks_, static_cast<unsigned>(options_.threads), 16, stream_.get(), to_gpu_.device,
                   to_cpu_.device, data_.device, static_cast<std::uint32_t>(words_.size()),
                   static_cast<std::uint32_t>(options_.iterations), timeout_ns, results_.device_address() + 8,
                   results_.device_address());
    pplat_outcome out;
    try {
      wait_for_gpu(kReady, "the blocks to start");
      if (options_.gpu_produces) serve();
      else drive(out);
    } catch (...) {
      leave();
      throw;
    }
    finish();
    if (result32(0) != 0) throw tool_failure("the kernel gave up waiting for the CPU (time-out, see -u)");
    if (options_.gpu_produces)
      out.samples_ns.push_back(static_cast<double>(result64(8)) / static_cast<double>(options_.iterations));
    else out.mismatches = result32(8);
    out.mismatches += mismatches_;
    return out;
  }

 private:
  std::uint32_t result32(std::size_t offset) const {
    return *reinterpret_cast<volatile std::uint32_t*>(results_.bytes() + offset);
  }
  std::uint64_t result64(std::size_t offset) const {
    return *reinterpret_cast<volatile std::uint64_t*>(results_.bytes() + offset);
  }

  void signal_gpu(std::uint32_t value) {
    std::fill(flags_.begin(), flags_.end(), value);
    to_gpu_.store(0, flags_.data(), flags_.size() * 4);
  }

  // Until every block's word has the value. Host memory is polled in place, GPU memory by one read of all words.
  void wait_for_gpu(std::uint32_t value, const char* description) {
    const std::uint64_t timeout_ns = static_cast<std::uint64_t>(options_.timeout_s) * 1'000'000'000;
    const std::uint64_t begin_ns = monotonic_ns();
    std::uint32_t block = 0;
    for (std::uint64_t spin = 1;; ++spin) {
      if (to_cpu_.through_mapping) {
        seen_.resize(blocks_);
        to_cpu_.load(0, seen_.data(), seen_.size() * 4);
        if (std::all_of(seen_.begin(), seen_.end(), [value](auto one) { return one == value; })) return;
      } else {
        const auto* words = reinterpret_cast<volatile std::uint32_t*>(to_cpu_.cpu);
        while (block < blocks_ && words[block] == value) ++block;
        if (block == blocks_) return std::atomic_thread_fence(std::memory_order_acquire);
      }
      // The simulated GPU's kernels run on the same CPUs: a poll that never yields keeps them from answering.
      if (gpu_.simulated()) sched_yield();
      if (timeout_ns != 0 && spin % 256 == 0 && monotonic_ns() - begin_ns > timeout_ns)
        throw tool_failure(format("time-out after %" PRId64 " s waiting for %s: the kernel does not answer (-u sets the "
                                  "limit)",
                                  options_.timeout_s, description));
    }
  }

  void drive(pplat_outcome& out) {
    const auto iterations = static_cast<std::uint32_t>(options_.iterations);
    out.samples_ns.reserve(iterations);
    std::uint64_t before = ticks_ordered();
    for (std::uint32_t i = 0; i < iterations; ++i) {
      const std::uint32_t value = i + 2;
      if (!words_.empty()) {
        for (std::uint32_t index = 0; index < words_.size(); ++index) words_[index] = data_word(value, index);
        before = ticks_ordered();  // making up the data is not part of the round trip
        data_.store(0, words_.data(), words_.size() * 4);
      }
      signal_gpu(value);
      wait_for_gpu(value, "an answer");
      const std::uint64_t after = ticks_ordered();
      const std::uint64_t taken = after - before;
      out.samples_ns.push_back(ticks_to_ns(taken - std::min(taken, clock_cost_ticks())));
      before = after;
    }
  }

  void serve() {
    signal_gpu(kReady);
    std::vector<std::uint32_t> seen(words_.size());
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(options_.iterations); ++i) {
      const std::uint32_t value = i + 2;
      wait_for_gpu(value, "the GPU's data");
      if (!seen.empty()) data_.load(0, seen.data(), seen.size() * 4);
      for (std::uint32_t index = 0; index < seen.size(); ++index)
        if (seen[index] != data_word(value, index)) ++mismatches_;
      signal_gpu(value);
    }
  }

  // After a failure: the kernel must not run on into memory that is about to be freed.
  void leave() {
    try {
      signal_gpu(kAbort);
      finish();
    } catch (const tool_failure& reason) { std::fprintf(stderr, "note: %s\n", reason.what()); }
  }

  void finish() {
    const std::uint64_t begin_ns = monotonic_ns();
    while (true) {
      const auto rc = gpu_.cuda().cuStreamQuery(stream_.get());
      if (rc == cu::error_code::success) return;
      if (rc != cu::error_code::not_ready) gpu_.check(rc, "the kernel");
      if (monotonic_ns() - begin_ns > 30'000'000'000)
        throw tool_failure("the kernel does not end: the GPU hangs; end this process and check the driver's log");
    }
  }

  const gpu_session& gpu_;
  const pplat_options& options_;
  std::uint32_t blocks_;
  host_memory host_;
  host_memory results_;  // u32 at 0: a wait failed; at 8: mismatches (u32) or nanoseconds (u64)
  gpu_stream stream_;
  kernel_module module_;
  shared_place to_gpu_, to_cpu_, data_;
  std::vector<std::uint32_t> flags_, seen_, words_;
  std::uint64_t mismatches_ = 0;
};

std::optional<int> parse(const invocation& call, pplat_options& options) {
  command_parser parser(call, "Measures the round-trip latency between the CPU and a running kernel");
  std::string to_gpu = "gpumem", to_cpu = "hostmem", data = "gpumem";
  std::int64_t mode = 0;
  parser.integer("-t,--iters", options.iterations, 1, 1'000'000'000, "Number of round trips");
  parser.integer("-u,--timeout", "SECONDS", options.timeout_s, 0, 86400, "Timeout of each wait in seconds, 0: none");
  parser.size("-s,--size", options.data_bytes, "Data size, divisible by 4; 0: flags only, one block of one thread");
  parser.integer("-B,--blocks", options.blocks, 1, kMaxBlocks, "Number of blocks of the kernel");
  parser.integer("-T,--threads", options.threads, 1, 1024, "Number of threads in a block");
  parser.integer("-m,--mode", "0|1", mode, 0, 1, "0: the CPU produces, 1: the GPU produces");
  const auto place = [&](const char* names, std::string& value, const char* help) {
    parser.choice(names, presence::optional, value, {"gpumem", "hostmem"}, format("%s [%s]", help, value.c_str()));
  };
  place("-G,--to-gpu-flag", to_gpu, "Memory of the flag from CPU to GPU");
  place("-C,--to-cpu-flag", to_cpu, "Memory of the flag from GPU to CPU");
  place("-D,--data", data, "Memory of the data");
  parser.mapping(options.common);
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  options.gpu_produces = mode == 1;
  options.to_gpu_in_host_memory = to_gpu == "hostmem";
  options.to_cpu_in_host_memory = to_cpu == "hostmem";
  options.data_in_host_memory = data == "hostmem";
  if (options.data_bytes % 4 != 0) throw tool_failure("-s must be divisible by 4");
  if (options.data_bytes > (1ull << 30)) throw tool_failure("-s may be at most 1G");
  if (options.data_bytes == 0) options.blocks = options.threads = 1;
  return std::nullopt;
}

const char* name_of(bool in_host) { return in_host ? "hostmem" : "gpumem"; }

}  // namespace

std::uint64_t ping_pong_bytes(const pplat_options& options) { return kDataAt + options.data_bytes; }

pplat_outcome run_ping_pong(const gpu_session& gpu, const pplat_options& options, const gdr_session&,
                            const gdr_buffer& buffer) {
  const int multiprocessors = gpu.attribute(cu::device_attribute::multiprocessor_count);
  const int threads_each = gpu.attribute(cu::device_attribute::max_threads_per_multiprocessor);
  if (multiprocessors > 0 && threads_each > 0) {
    const std::int64_t resident = multiprocessors * std::max<std::int64_t>(1, threads_each / options.threads);
    if (options.blocks > resident)
      throw tool_failure(format("-B %" PRId64 " -T %" PRId64 ": only %" PRId64 " such blocks run at a time on this GPU, the "
                                "others would never answer",
                                options.blocks, options.threads, resident));
  }
  return ping_pong(gpu, options, buffer).run();
}

int run_pplat(const invocation& call) {
  pplat_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "pplat");
  const gpu_session gpu(options.common.gpu);
  if (gpu.attribute(cu::device_attribute::compute_capability_major) < 6)
    throw tool_failure("pplat needs a GPU of compute capability 6.0 or newer");
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  std::printf("Benchmark mode: %s\n", options.gpu_produces ? "GPU produces, CPU consumes" : "CPU produces, GPU consumes");
  std::printf("gpu alloc fn: %s\n", to_string(options.common.alloc));
  const device_memory memory(gpu, ping_pong_bytes(options), options.common.alloc);
  std::printf("device ptr: 0x%" PRIx64 "\n", static_cast<std::uint64_t>(memory.get()));
  gdr_session gdr;
  gdr_buffer buffer(gdr, memory.get(), memory.size_bytes(), options.common.map_flag);
  print_mapping_lines(buffer);
  out.describe(&gpu, &buffer, cpus);

  std::printf("The %s writes %sits flag; the %s polls it and answers with a flag of its own.\n",
              options.gpu_produces ? "GPU" : "CPU", options.data_bytes != 0 ? "data and then " : "",
              options.gpu_produces ? "CPU" : "GPU");
  std::printf("CPU->GPU flag in %s, GPU->CPU flag in %s, data in %s.\n", name_of(options.to_gpu_in_host_memory),
              name_of(options.to_cpu_in_host_memory), name_of(options.data_in_host_memory));
  std::printf("Running %" PRId64 " iterations with data size %" PRIu64 " bytes, %" PRId64 " blocks of %" PRId64
              " threads.\n",
              options.iterations, options.data_bytes, options.blocks, options.threads);
  const pplat_outcome outcome = run_ping_pong(gpu, options, gdr, buffer);
  const summary all = summarize(outcome.samples_ns);
  std::printf("Round-trip latency per iteration is (min) %g, (median) %g us\n", all.min / 1e3, all.p50 / 1e3);
  const bool good = outcome.mismatches == 0;
  if (!good) std::fprintf(stderr, "%" PRIu64 " words of data were not what the other side wrote\n", outcome.mismatches);

  auto& file = out.file();
  file.set_parameter("iterations", options.iterations);
  file.set_parameter("blocks", options.blocks);
  file.set_parameter("threads", options.threads);
  nlohmann::json row{{"series", "round_trip"},
                     {"mode", options.gpu_produces ? "gpu_produces" : "cpu_produces"},
                     {"data_bytes", options.data_bytes},
                     {"to_gpu_flag", name_of(options.to_gpu_in_host_memory)},
                     {"to_cpu_flag", name_of(options.to_cpu_in_host_memory)},
                     {"data", name_of(options.data_in_host_memory)},
                     {"mismatched_words", outcome.mismatches}};
  row.update(latency_fields(outcome.samples_ns));
  file.add_row(std::move(row));
  file.add_samples("round_trip", outcome.samples_ns);
  if (options.gpu_produces)
    file.add_note("GPU produces: the one sample is the GPU's mean over all iterations (%globaltimer)");
  file.set_pass(good);
  close_with_lines(buffer, gdr);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
