// SPDX-License-Identifier: Apache-2.0
// Transfers that kernels start, on a real GPU: right, then how fast.
//
//     device_put_bench [FILE.json [SECTION ...]]
//
// Sections: latency rate bandwidth order signals random company errors gemm; all of them without one. Exit code 1 if
// anything is wrong. cublas=LIBRARY among the sections names the library for the multiplication that runs beside puts, which
// is left out without it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/matrix_product.hpp"
#include "bench/must.hpp"
#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "device_put_kernels_image.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 64u << 20;
constexpr std::size_t kAnswers = 1u << 16;
int failures = 0;

void check(bool is_right, const std::string& step) {
  if (is_right) return;
  ++failures;
  std::printf("WRONG: %s\n", step.c_str());
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& one) {
    return static_cast<double>(one.tv_sec) + static_cast<double>(one.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class bench {
 public:
  explicit bench(const cu::driver_table& table) : cuda_(table) {}
  void set_up();
  void time_latency();
  void time_rate();
  void time_bandwidth();
  void check_order();
  void check_signals();
  void check_random();
  void time_concurrent_load();
  void check_errors();
  void time_gemm();
  result_file file{"device_put_bench", {"device_put_bench"}};
  std::string cublas;

 private:
  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda_, code).c_str());
    std::exit(1);
  }
  static constexpr std::uint64_t kTimeoutNs = 2'000'000'000;
  bool open(unsigned rings, bool yields = false, std::uint64_t timeout_ns = kTimeoutNs, std::uint32_t slice_us = 0);
  template <class... Args>
  void launch(const char* name, unsigned blocks, unsigned threads, Args... args) {
    cu::function_t function = nullptr;
    must(cuda_.cuModuleGetFunction(&function, module_, name), name);
    void* parameters[] = {&args...};
    must(cuda_.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_, parameters, nullptr), name);
  }
  void finish(const char* step) { must(cuda_.cuStreamSynchronize(stream_), step); }
  std::vector<std::uint64_t> read(cu::device_ptr source, std::size_t words) {
    std::vector<std::uint64_t> out(words);
    must(cuda_.cuMemcpyDtoH_v2(out.data(), source, words * 8), "cuMemcpyDtoH");
    return out;
  }
  bool are_right(std::size_t count, const std::string& step) {
    const auto got = read(answers_, count);
    const auto wrong = std::find_if(got.begin(), got.end(), [](std::uint64_t one) { return one != 0; });
    const auto now = session_->ring(0).read();
    check(wrong == got.end(),
          step + (wrong != got.end() ? format(": a thread got %lld%s%s", static_cast<long long>(*wrong),
                                              now.reason ? ", " : "", now.reason ? now.reason->message.c_str() : "")
                                     : ""));
    return wrong == got.end();
  }
  const peerlane_device_ring& ring(unsigned index = 0) const { return session_->ring(index).handle(); }
  cu::device_ptr give_rings(unsigned rings);
  double rate_of(unsigned rings, unsigned blocks, unsigned threads, unsigned is_each, std::uint64_t bytes, unsigned count,
                 const peerlane_device_window& destination, const peerlane_device_window& source);
  void time_gemm_beside(const matrix_product& product, cu::function_t burst, std::uint64_t bytes, bool is_resident);
  std::vector<double> latency_of(const peerlane_device_window& destination, const peerlane_device_window& source,
                                 std::uint64_t bytes, unsigned mode, unsigned rounds);

  const cu::driver_table& cuda_;
  cu::context_t context_ = nullptr;
  cu::module_t module_ = nullptr;
  cu::stream_t stream_ = nullptr, other_ = nullptr, urgent_ = nullptr;
  cu::device_ptr device_ = 0, far_memory_ = 0, small_ = 0, answers_ = 0, host_pointer_ = 0;
  std::byte* host_ = nullptr;
  double cycles_per_ns_ = 1;
  std::unique_ptr<device::session> session_;
  peerlane_device_window gpu_{}, far_{}, host_window_{}, words_{};
  unsigned next_ = 1;
};

void bench::set_up() {
  need(cu::initialize(cuda_), "cuInit");
  must(cuda_.cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
  must(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  module_ = need(cu::load_kernels(cuda_, kernels::device_put_kernels()), "kernels");
  must(cuda_.cuStreamCreate(&stream_, 1), "cuStreamCreate");
  must(cuda_.cuStreamCreate(&other_, 1), "cuStreamCreate");
  must(cuda_.cuMemAlloc_v2(&device_, kBytes), "cuMemAlloc");
  must(cuda_.cuMemAlloc_v2(&far_memory_, kBytes), "cuMemAlloc");
  must(cuda_.cuMemAlloc_v2(&small_, 2u << 20), "cuMemAlloc");
  must(cuda_.cuMemAlloc_v2(&answers_, kAnswers * 8), "cuMemAlloc");
  void* host = nullptr;
  must(cuda_.cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
  host_ = static_cast<std::byte*>(host);
  std::vector<std::uint32_t> pattern(kBytes / 4);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::uint32_t>(i * 2654435761u);
  must(cuda_.cuMemcpyHtoD_v2(device_, pattern.data(), kBytes), "cuMemcpyHtoD");
  launch("count_cycles", 1, 1, std::uint64_t{50'000'000}, std::uint64_t{answers_});
  finish("count_cycles");
  const auto cycles = read(answers_, 2);
  cycles_per_ns_ = static_cast<double>(cycles[0]) / static_cast<double>(cycles[1]);
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda_, 0);
  facts.backend = "rm";
  file.set_machine(facts);
  file.set_parameter("cycles_per_ns", cycles_per_ns_);
  std::printf("%.3f cycles a nanosecond\n", cycles_per_ns_);
}

bool bench::open(unsigned rings, bool yields, std::uint64_t timeout_ns, std::uint32_t slice_us) {
  session_.reset();
  device::session_options wanted;
  wanted.rings = rings;
  wanted.ring.yields = yields;
  wanted.ring.timeout_ns = timeout_ns;
  wanted.ring.timeslice_us = slice_us;
  const std::uint64_t begin_ns = monotonic_ns();
  auto opened = device::session::open(cuda_, wanted);
  if (!opened) {
    check(false, "opening a session: " + opened.error().message);
    return false;
  }
  session_ = std::move(*opened);
  std::printf("[%u rings%s: %.1f ms]\n", rings, yields ? ", yielding" : "",
              static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
  const auto add = [&](std::uint64_t address, std::uint64_t bytes) {
    auto made = session_->add_window(address, bytes);
    check(made.ok(), "a window" + (made ? "" : ": " + made.error().message));
    return made ? *made : peerlane_device_window{};
  };
  gpu_ = add(device_, kBytes);
  far_ = add(far_memory_, kBytes);
  host_window_ = add(reinterpret_cast<std::uint64_t>(host_), kBytes);
  words_ = add(small_, 2u << 20);
  must(cuda_.cuMemsetD8_v2(small_, 0, 2u << 20), "cuMemsetD8");
  must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  next_ = 1;
  return true;
}

// ---- Latency

std::vector<double> bench::latency_of(const peerlane_device_window& destination, const peerlane_device_window& source,
                                      std::uint64_t bytes, unsigned mode, unsigned rounds) {
  launch("time_puts", 1, 1, ring(), destination, source, bytes, words_, next_, rounds, mode, std::uint64_t{answers_});
  finish("time_puts");
  next_ += rounds;
  const auto cycles = read(answers_, rounds);
  std::vector<double> times_ns;
  for (std::size_t i = rounds / 10; i < cycles.size(); ++i) {
    if (cycles[i] >> 63 != 0) {
      check(false,
            format("a put of %llu bytes: %lld", static_cast<unsigned long long>(bytes), static_cast<long long>(cycles[i])));
      break;
    }
    times_ns.push_back(static_cast<double>(cycles[i]) / cycles_per_ns_);
  }
  return times_ns;
}

void bench::time_latency() {
  static constexpr const char* kHow[] = {"put_signal",     "put_signal unflushed",     "put",    "put flushed",
                                         "own put_signal", "own put_signal unflushed", "own put"};
  for (const bool yields : {false, true}) {
    if (!open(1, yields)) return;
    std::printf(
        "%-10s %9s   mean us (p50) of put_signal, the same unflushed, put's ticket, flushed; put_signal, unflushed, ticket "
        "of a ring of its own\n",
        "to", "bytes");
    for (const auto& [name, destination, source] :
         {std::tuple{"device", far_, gpu_}, {"host", host_window_, gpu_}, {"from host", gpu_, host_window_}})
      for (const std::uint64_t bytes : {64u, 256u, 1024u, 4096u, 8192u, 16384u, 65536u, 262144u, 1048576u}) {
        if (yields && bytes != 64 && bytes != 8192) continue;
        std::printf("%-10s %9llu", name, static_cast<unsigned long long>(bytes));
        for (unsigned mode = 0; mode < 7; ++mode) {
          const auto times_ns = latency_of(destination, source, bytes, mode, bytes <= 65536 ? 2000 : 300);
          if (times_ns.empty()) continue;
          auto row = latency_fields(times_ns);
          row["kind"] = "latency";
          row["to"] = name;
          row["size_bytes"] = bytes;
          row["call"] = kHow[mode];
          row["yields"] = yields;
          std::printf("  %6.2f (%5.2f)", row["latency_ns_mean"].get<double>() / 1e3,
                      row["latency_ns_p50"].get<double>() / 1e3);
          file.add_row(row);
        }
        std::printf("%s\n", yields ? "  yielding" : "");
        std::fflush(stdout);
      }
    if (yields) break;
    constexpr unsigned kRounds = 1000;
    launch("time_steps", 1, 1, ring(), far_, gpu_, std::uint64_t{64}, kRounds, std::uint64_t{answers_});
    finish("time_steps");
    const auto cycles = read(answers_, kRounds * 4);
    double sums[4] = {};
    for (std::size_t i = 0; i < cycles.size(); ++i) sums[i % 4] += static_cast<double>(cycles[i]) / cycles_per_ns_ / kRounds;
    std::printf("a put of 64 B: ticket %.0f ns, segment %.0f, fence and handing over %.0f, then until it is seen %.0f\n",
                sums[0], sums[1], sums[2], sums[3]);
    file.add_row({{"kind", "steps"},
                  {"ticket_ns", sums[0]},
                  {"segment_ns", sums[1]},
                  {"commit_ns", sums[2]},
                  {"engine_ns", sums[3]}});
  }
}

// ---- Rate

// Their handles, where kernels read them.
cu::device_ptr bench::give_rings(unsigned rings) {
  std::vector<peerlane_device_ring> handles;
  for (unsigned i = 0; i < rings; ++i) handles.push_back(ring(i));
  const cu::device_ptr table = small_ + (1u << 20);
  must(cuda_.cuMemcpyHtoD_v2(table, handles.data(), handles.size() * sizeof handles[0]), "cuMemcpyHtoD");
  must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  return table;
}

double bench::rate_of(unsigned rings, unsigned blocks, unsigned threads, unsigned is_each, std::uint64_t bytes,
                      unsigned count, const peerlane_device_window& destination, const peerlane_device_window& source) {
  const cu::device_ptr table = give_rings(rings);
  const std::uint64_t begin_ns = monotonic_ns();
  launch("many_puts", blocks, threads, std::uint64_t{table}, rings, destination, source, bytes, count, is_each,
         std::uint64_t{answers_});
  finish("many_puts");
  const double seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
  if (!are_right(std::size_t{blocks} * threads, format("%u blocks of %u threads, %u rings", blocks, threads, rings)))
    return 0;
  return static_cast<double>(blocks) * threads * count / seconds;
}

void bench::time_rate() {
  struct shape {
    unsigned blocks, threads;
    unsigned is_each;
  };
  for (const unsigned rings : {1u, 2u, 3u, 5u, 8u}) {
    if (!open(rings)) return;
    for (const auto& [blocks, threads, is_each] : {shape{1, 1, 0},
                                                   {1, 1, 2},
                                                   {2, 1, 2},
                                                   {3, 1, 2},
                                                   {5, 1, 2},
                                                   {1, 32, 0},
                                                   {1, 32, 1},
                                                   {1, 256, 1},
                                                   {1, 256, 0},
                                                   {8, 32, 1},
                                                   {16, 128, 1},
                                                   {64, 128, 1},
                                                   {64, 128, 0}}) {
      if (blocks < rings || (is_each == 2 && blocks != rings)) continue;
      const unsigned count = std::max(16u, (threads == 1 ? 100'000u : 600'000u) / (blocks * threads));
      for (const auto& [name, destination] : {std::pair{"device", far_}, {"host", host_window_}}) {
        const double cpu = cpu_seconds();
        const std::uint64_t begin_ns = monotonic_ns();
        const double rate = rate_of(rings, blocks, threads, is_each, 64, count, destination, gpu_);
        const double used = (cpu_seconds() - cpu) / (static_cast<double>(monotonic_ns() - begin_ns) / 1e9);
        std::printf("%u rings, %3u x %3u threads%s, 64 B to the %-6s: %6.2f million puts/s\n", rings, blocks, threads,
                    is_each == 2   ? ", own put "
                    : is_each == 1 ? ", put_each"
                                   : ",     put ",
                    name, rate / 1e6);
        std::fflush(stdout);
        file.add_row({{"kind", "rate"},
                      {"rings", rings},
                      {"blocks", blocks},
                      {"threads", threads},
                      {"each", is_each},
                      {"to", name},
                      {"size_bytes", 64},
                      {"puts_per_s", rate},
                      {"cpu_cores_with_waiting_host", used}});
      }
    }
  }
}

void bench::time_bandwidth() {
  for (const unsigned rings : {1u, 2u}) {
    if (!open(rings)) return;
    for (const auto& [name, destination, source] : {std::tuple{"to the host", host_window_, gpu_},
                                                    {"from the host", gpu_, host_window_},
                                                    {"on the device", far_, gpu_}})
      for (const std::uint64_t bytes : {4096u, 65536u, 1048576u}) {
        const auto count = static_cast<unsigned>(std::min<std::uint64_t>(20'000, (std::uint64_t{2} << 30) / bytes));
        const double rate = rate_of(rings, rings, 1, 2, bytes, count / rings, destination, source);
        std::printf("%u rings, puts of %7llu B %-14s %6.1f GB/s\n", rings, static_cast<unsigned long long>(bytes), name,
                    rate * static_cast<double>(bytes) / 1e9);
        file.add_row({{"kind", "bandwidth"},
                      {"rings", rings},
                      {"direction", name},
                      {"size_bytes", bytes},
                      {"bandwidth_gb_per_s", rate * static_cast<double>(bytes) / 1e9}});
      }
  }
}

// ---- Right

void bench::check_order() {
  if (!open(1)) return;
  for (const unsigned flags : {0u, unsigned{PEERLANE_DEVICE_UNFLUSHED}})
    for (const auto& [name, destination] : {std::pair{"device", far_}, {"host, seen by the GPU", host_window_}})
      for (const std::uint64_t bytes : {64u, 4096u, 65536u}) {
        must(cuda_.cuMemsetD8_v2(answers_, 0, 64), "cuMemsetD8");
        must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
        const unsigned rounds = bytes <= 4096 ? 100'000 : 20'000;
        launch("litmus", 1, 128, ring(), destination, gpu_, bytes, words_, next_, rounds, flags, std::uint64_t{answers_});
        finish("litmus");
        next_ += rounds;
        const auto found = read(answers_, 3);
        std::printf(
            "order %s, signal in device memory, %llu B to %s: %u puts, threads that saw old words %llu, after 20 us %llu\n",
            flags == 0 ? "flushed" : "unflushed", static_cast<unsigned long long>(bytes), name, rounds,
            static_cast<unsigned long long>(found[0]), static_cast<unsigned long long>(found[1]));
        check(found[2] == 0 && (flags != 0 || found[0] == 0), "a signal comes behind its bytes");
        file.add_row({{"kind", "order"},
                      {"flushed", flags == 0},
                      {"to", name},
                      {"word", "device"},
                      {"size_bytes", bytes},
                      {"puts", rounds},
                      {"old", found[0]},
                      {"old_after_20_us", found[1]},
                      {"failed", found[2]}});
      }
  // The word and the bytes in host memory, seen by the CPU.
  auto* const word = reinterpret_cast<std::uint32_t*>(host_ + kBytes - 4096);
  const auto host_words = session_->add_window(reinterpret_cast<std::uint64_t>(word), 4096);
  check(host_words.ok(), "a window of words");
  if (!host_words) return;
  auto answer_words = *host_words;
  answer_words.address += 64;
  answer_words.dma += 64;
  answer_words.size_bytes -= 64;
  for (const unsigned flags : {0u, unsigned{PEERLANE_DEVICE_UNFLUSHED}})
    for (const std::uint64_t bytes : {64u, 4096u}) {
      constexpr unsigned kRounds = 50'000;
      __atomic_store_n(word, next_ - 1, __ATOMIC_RELEASE);
      __atomic_store_n(word + 16, next_ - 1, __ATOMIC_RELEASE);
      launch("signal_host", 1, 1, ring(), host_window_, gpu_, bytes, *host_words, answer_words, next_, kRounds, flags);
      std::uint64_t old = 0, late = 0;
      bool is_stuck = false;
      for (unsigned round = next_; round < next_ + kRounds && !is_stuck; ++round) {
        const std::uint64_t end_ns = monotonic_ns() + 2'000'000'000;
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != round)
          if (monotonic_ns() > end_ns) {
            is_stuck = true;
            break;
          }
        const auto is_old = [&] {
          for (std::size_t place = 0; place < bytes / 4; ++place)
            if (__atomic_load_n(reinterpret_cast<std::uint32_t*>(host_) + place, __ATOMIC_RELAXED) != round) return true;
          return false;
        };
        if (is_old()) {
          ++old;
          const std::uint64_t wait_ns = monotonic_ns() + 50'000;
          while (monotonic_ns() < wait_ns) {}
          late += !is_old();
        }
        __atomic_store_n(word + 16, round, __ATOMIC_RELEASE);
      }
      finish("signal_host");
      next_ += kRounds;
      std::printf(
          "order %s, signal and %llu B in host memory, seen by the CPU: %u puts, %llu old, %llu of them only late%s\n",
          flags == 0 ? "flushed" : "unflushed", static_cast<unsigned long long>(bytes), kRounds,
          static_cast<unsigned long long>(old), static_cast<unsigned long long>(late), is_stuck ? ", STUCK" : "");
      check(!is_stuck && (flags != 0 || old == 0), "a signal in host memory comes behind its bytes");
      file.add_row({{"kind", "order"},
                    {"flushed", flags == 0},
                    {"to", "host, seen by the CPU"},
                    {"word", "host"},
                    {"size_bytes", bytes},
                    {"puts", kRounds},
                    {"old", old},
                    {"late", late}});
    }
}

// Ten million puts that blocks post side by side, each byte looked at by the block that sees the signal; then fewer of the
// other kind of signal, of which some may be early.
void bench::check_signals() {
  constexpr unsigned kRings = 3, kBlocks = 48, kMaxBytesOfPut = 8192;
  for (const unsigned flags : {0u, unsigned{PEERLANE_DEVICE_UNFLUSHED}}) {
    if (!open(kRings)) return;
    for (const auto& [name, destination] : {std::pair{"device", far_}, {"host, seen by the GPU", host_window_}}) {
      must(cuda_.cuMemsetD8_v2(answers_, 0, 64), "cuMemsetD8");
      const unsigned rounds = (flags == 0 ? 5'000'000u : 1'000'000u) / kBlocks + 1;
      const cu::device_ptr table = give_rings(kRings);
      const std::uint64_t begin_ns = monotonic_ns();
      launch("litmus_many", kBlocks, 128, std::uint64_t{table}, kRings, destination, gpu_, std::uint64_t{kMaxBytesOfPut},
             words_, next_, rounds, flags, std::uint64_t{answers_});
      finish("litmus_many");
      const double seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
      next_ += rounds;
      const auto found = read(answers_, 4);
      const std::uint64_t puts = std::uint64_t{rounds} * kBlocks;
      std::printf("signals %s, up to %u B to %s: %llu puts, %.1f GB, %.1f s, threads that saw old words %llu\n",
                  flags == 0 ? "by default" : "unflushed", kMaxBytesOfPut, name, static_cast<unsigned long long>(puts),
                  static_cast<double>(found[3]) / 1e9, seconds, static_cast<unsigned long long>(found[0]));
      std::fflush(stdout);
      check(found[2] == 0 && (flags != 0 || found[0] == 0), "a signal comes behind its bytes");
      file.add_row({{"kind", "signals"},
                    {"flushed", flags == 0},
                    {"to", name},
                    {"blocks", kBlocks},
                    {"rings", kRings},
                    {"most_bytes", kMaxBytesOfPut},
                    {"puts", puts},
                    {"bytes", found[3]},
                    {"seconds", seconds},
                    {"old", found[0]},
                    {"failed", found[2]}});
    }
  }
}

void bench::check_random() {
  if (!open(1)) return;
  std::vector<std::byte> expected(kBytes), got(kBytes);
  must(cuda_.cuMemcpyDtoH_v2(expected.data(), device_, kBytes), "cuMemcpyDtoH");
  std::uint64_t total = 0;
  const std::uint64_t begin_ns = monotonic_ns();
  for (unsigned round = 0; round < 8; ++round) {
    const bool is_host = round % 2 == 0;
    const unsigned most = round < 6 ? 64 : 5000, blocks = 1u << (round % 4 * 2), threads = round < 4 ? 128 : 32;
    const std::uint64_t slot = kBytes / (std::uint64_t{blocks} * threads);
    if (is_host) std::memset(host_, 0xee, kBytes);
    must(cuda_.cuMemsetD8_v2(far_memory_, 0xee, kBytes), "cuMemsetD8");
    must(cuda_.cuMemsetD8_v2(small_, 0, 64), "cuMemsetD8");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
    launch("random_puts", blocks, threads, ring(), is_host ? host_window_ : far_, gpu_, slot, most,
           std::uint64_t{round * 977}, std::uint64_t{small_}, std::uint64_t{answers_});
    finish("random_puts");
    if (!are_right(std::size_t{blocks} * threads, "random puts")) return;
    if (!is_host) must(cuda_.cuMemcpyDtoH_v2(got.data(), far_memory_, kBytes), "cuMemcpyDtoH");
    const bool is_right = std::memcmp(is_host ? host_ : got.data(), expected.data(), kBytes) == 0;
    check(is_right, "every byte of random puts");
    const std::uint64_t puts = read(small_, 1)[0];
    total += puts;
    std::printf("random: %9llu puts up to %u B by %u x %u threads to the %s: %s\n", static_cast<unsigned long long>(puts),
                most, blocks, threads, is_host ? "host" : "device", is_right ? "every byte right" : "WRONG");
    std::fflush(stdout);
    file.add_row({{"kind", "random"},
                  {"puts", puts},
                  {"most_bytes", most},
                  {"blocks", blocks},
                  {"threads", threads},
                  {"to", is_host ? "host" : "device"},
                  {"right", is_right}});
  }
  std::printf("random: %llu puts in %.1f s\n", static_cast<unsigned long long>(total),
              static_cast<double>(monotonic_ns() - begin_ns) / 1e9);
}

// ---- Company: what rings that wait for kernels cost CUDA's own copies and the CPU

void bench::time_concurrent_load() {
  struct setting {
    unsigned rings;
    std::uint32_t slice_us;
  };
  constexpr auto kDriver = dma::device_ring_options::kDriversTimeslice;
  for (const auto& [rings, slice_us] : {setting{0, kDriver},
                                        {1, kDriver},
                                        {1, 50},
                                        {1, 10},
                                        {1, 2},
                                        {3, kDriver},
                                        {3, 10},
                                        {5, kDriver},
                                        {5, 50},
                                        {5, 10},
                                        {5, 2}}) {
    session_.reset();
    if (rings != 0 && !open(rings, false, kTimeoutNs, slice_us)) continue;
    std::vector<double> to_host_ns, to_device_ns;
    for (int i = 0; i < 1000; ++i) {
      to_host_ns.push_back(time_once_ns([&] { cuda_.cuMemcpyDtoH_v2(host_, device_, 65536); }));
      to_device_ns.push_back(time_once_ns([&] { cuda_.cuMemcpyHtoD_v2(far_memory_, host_, 65536); }));
    }
    const double big_ns = time_once_ns([&] {
      for (int i = 0; i < 8; ++i) cuda_.cuMemcpyDtoH_v2(host_, device_, kBytes);
    });
    const double cpu = cpu_seconds();
    const std::uint64_t begin_ns = monotonic_ns();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const double idle_cores = (cpu_seconds() - cpu) / (static_cast<double>(monotonic_ns() - begin_ns) / 1e9);
    auto row = latency_fields(to_host_ns), device_row = latency_fields(to_device_ns);
    std::printf(
        "%u idle rings, slices of %u us: cuMemcpy of 64 KiB to the host %.2f us (p99 %.1f), to the device %.2f (p99 %.1f); "
        "64 MiB %.1f "
        "GB/s; CPU %.2f %%\n",
        rings, slice_us == kDriver ? 0 : slice_us, row["latency_ns_p50"].get<double>() / 1e3,
        row["latency_ns_p99"].get<double>() / 1e3, device_row["latency_ns_p50"].get<double>() / 1e3,
        device_row["latency_ns_p99"].get<double>() / 1e3, 8.0 * kBytes / big_ns, idle_cores * 100);
    row["kind"] = "company";
    row["rings"] = rings;
    row["timeslice_us"] = slice_us == kDriver ? 0 : slice_us;
    row["bandwidth_gb_per_s"] = 8.0 * kBytes / big_ns;
    row["to_device_ns_p50"] = device_row["latency_ns_p50"];
    row["to_device_ns_p99"] = device_row["latency_ns_p99"];
    row["cpu_cores_idle"] = idle_cores;
    file.add_row(row);
  }
}

// ---- What goes wrong ends with an error

void bench::check_errors() {
  if (!open(2, false, 300'000'000)) return;
  const auto gone = *session_->add_window(device_, kBytes);
  check(session_->remove_window(gone).ok(), "releasing a window");
  const auto one = [&](unsigned index, const peerlane_device_window& destination) {
    launch("time_puts", 1, 1, ring(index), destination, gpu_, std::uint64_t{64}, words_, next_++, 1u, 2u,
           std::uint64_t{answers_});
    const std::uint64_t begin_ns = monotonic_ns();
    finish("a put");
    const auto answer = static_cast<long long>(read(answers_, 1)[0]);
    std::printf("errors: answer %lld after %.1f ms\n", answer, static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
    return answer;
  };
  check(one(0, gone) == PEERLANE_DEVICE_EIO, "a put into a window that was released ends with EIO");
  const auto now = session_->ring(0).read();
  std::printf("errors: %s\n", now.reason ? now.reason->message.c_str() : "no reason");
  check(one(0, far_) == PEERLANE_DEVICE_EIO, "the ring stays ended");
  check(one(1, far_) > 0, "the other ring works");
  auto small = far_;
  small.size_bytes = 32;
  check(one(1, small) == PEERLANE_DEVICE_ERANGE, "a put outside of its window");
  const bool opens = open(1);
  check(opens && one(0, far_) > 0, "a new session works");
  file.add_row({{"kind", "errors"}, {"right", failures == 0}});
}

// ---- Beside a matrix multiplication

// Matrix products of cuBLAS alone and beside puts to the host, posted in two ways: by a thread that stays, and by short
// kernels that post and end while the copy engine goes on. What a resident thread costs by itself is the third row: it holds
// a multiprocessor, which the product's kernel then cannot fill.
void bench::time_gemm() {
  auto product = matrix_product::open(cuda_, cublas, other_);
  if (!product) {
    std::printf("gemm: left out: %s\n", product.error().message.c_str());
    return;
  }
  if (!open(1)) return;
  cu::function_t burst = nullptr;
  must(cuda_.cuModuleGetFunction(&burst, module_, "burst_of_puts"), "burst_of_puts");
  must(cuda_.cuStreamCreateWithPriority(&urgent_, 1, -5), "cuStreamCreateWithPriority");
  product->run([] {});
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{64}, std::uint64_t{65536}, std::uint64_t{1048576}})
    for (const bool is_resident : {true, false})
      if (bytes != 0 || is_resident) time_gemm_beside(*product, burst, bytes, is_resident);
}

void bench::time_gemm_beside(const matrix_product& product, cu::function_t burst, std::uint64_t bytes, bool is_resident) {
  constexpr std::uint64_t kPutsOfABurst = 128, kInFlight = 512;
  std::vector<double> alone, beside, gb_per_s;
  for (int turn = 0; turn < 5; ++turn) {
    alone.push_back(product.run([] {}));
    const std::uint64_t before = session_->ring(0).read().completed, begin_ns = monotonic_ns();
    if (bytes == 0) {
      launch("count_cycles", 1, 1, std::uint64_t{150'000'000}, std::uint64_t{answers_});
    } else if (is_resident) {
      // Enough puts for the time of the products.
      const auto count = static_cast<unsigned>(std::min<std::uint64_t>(400'000, (std::uint64_t{3} << 30) * 4 / bytes));
      launch("many_puts", 1, 1, std::uint64_t{give_rings(1)}, 1u, host_window_, gpu_, bytes, count, 0u,
             std::uint64_t{answers_});
    }
    std::uint64_t launched = 0;
    beside.push_back(product.run([&] {
      if (is_resident || launched - (session_->ring(0).read().completed - before) > kInFlight) return;
      auto handle = ring();
      auto rounds = static_cast<unsigned>(kPutsOfABurst / 32);
      void* parameters[] = {&handle, &host_window_, &gpu_, &bytes, &rounds};
      must(cuda_.cuLaunchKernel(burst, 1, 1, 1, 32, 1, 1, 0, urgent_, parameters, nullptr), "burst_of_puts");
      launched += kPutsOfABurst;
    }));
    gb_per_s.push_back(static_cast<double>((session_->ring(0).read().completed - before) * bytes) /
                       static_cast<double>(monotonic_ns() - begin_ns));
    finish("the puts beside");
    must(cuda_.cuStreamSynchronize(urgent_), "the puts beside");
  }
  for (auto* const one : {&alone, &beside, &gb_per_s}) std::sort(one->begin(), one->end());
  const char* const poster = bytes == 0    ? "a thread that only reads the clock"
                             : is_resident ? "a resident thread"
                                           : "short kernels";
  std::printf(
      "gemm: %.1f TFLOP/s alone (%.1f to %.1f), %.1f (%.1f to %.1f) = %.2f %% beside %s, puts of %llu B, %.2f GB/s\n",
      alone[2], alone[0], alone[4], beside[2], beside[0], beside[4], beside[2] / alone[2] * 100, poster,
      static_cast<unsigned long long>(bytes), gb_per_s[2]);
  file.add_row({{"kind", "gemm"},
                {"posted_by", poster},
                {"size_bytes", bytes},
                {"tflop_per_s_alone", alone[2]},
                {"tflop_per_s_beside", beside[2]},
                {"bandwidth_gb_per_s", gb_per_s[2]}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = cu::driver();
  if (!cuda) return std::printf("FAILED: %s\n", cuda.error().message.c_str()), 1;
  bench run(**cuda);
  run.set_up();
  std::vector<std::string> wanted;
  for (int i = 2; i < argc; ++i)
    if (const std::string one = argv[i]; one.rfind("cublas=", 0) == 0) run.cublas = one.substr(7);
    else wanted.push_back(one);
  const auto section = [&](const char* name, void (bench::*part)()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) return;
    std::printf("\n--- %s\n", name);
    std::fflush(stdout);
    (run.*part)();
    run.file.set_pass(failures == 0);
    if (argc > 1)
      if (status done = run.file.write(argv[1]); !done) std::printf("FAILED: %s\n", done.error().message.c_str());
  };
  section("latency", &bench::time_latency);
  section("order", &bench::check_order);
  section("signals", &bench::check_signals);
  section("rate", &bench::time_rate);
  section("bandwidth", &bench::time_bandwidth);
  section("random", &bench::check_random);
  section("company", &bench::time_concurrent_load);
  section("gemm", &bench::time_gemm);
  section("errors", &bench::check_errors);
  std::printf("%s\n", failures == 0 ? "all right" : "SOMETHING IS WRONG");
  std::fflush(stdout);
  _exit(failures == 0 ? 0 : 1);
}
