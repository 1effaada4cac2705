// SPDX-License-Identifier: Apache-2.0
// Which commands make bytes arrive before their completion word, and what each costs: every candidate on every copy engine,
// alone and beside others, each copy checked as soon as its word is seen. How many fences a submission needs, whether words
// of memory are written whole, and what streaming loads of a mapping may answer.
//
//     dma_barrier_bench [--seconds N] [--only PART] [FILE.json]      seconds of each late case [1]
#include <immintrin.h>

#include "bench/raw_channel.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

struct counts {
  std::atomic<std::uint64_t> checked{0}, late{0}, wrong{0}, max_late_ns{0}, late_bytes_from_end{0};
};

struct bench : channel_bench {
  using channel_bench::channel_bench;
  void latency(unsigned engine, bool all_sizes);
  std::vector<std::thread> start_load(const std::atomic<bool>& ends);
  void late(const candidate& one, unsigned count, bool is_loaded, double seconds);
  void torn(unsigned count, bool is_loaded, bool is_congruent, double seconds);
  void by_submission();
  void streaming_loads();
};

void bench::latency(unsigned engine, bool all_sizes) {
  const std::vector<std::uint32_t> sizes = all_sizes ? std::vector<std::uint32_t>{64, 1024, 4096, 16384, 65536, 1u << 20}
                                                     : std::vector<std::uint32_t>{4096, 65536};
  for (const bool to_host : {true, false}) {
    std::printf("\nCOPY%u %s, us p50   ", engine, to_host ? "to the host" : "to the device");
    for (const auto size : sizes) std::printf("%9u", size);
    std::printf("\n");
    for (const auto& one : kCandidates) {
      if (std::find(refused.begin(), refused.end(), one.name) != refused.end()) continue;
      std::printf("  %-26s", one.name);
      raw_channel queue(space, engine);
      for (const auto size : sizes) {
        std::vector<std::uint32_t> ns;
        bool is_right = true;
        for (int i = 0; i < 700 && is_right; ++i) {
          const std::uint64_t begin = monotonic_ns();
          queue.submit(
              one.build(queue, to_host ? big_on_host() : big_on_device(), to_host ? big_on_device() : big_on_host(), size));
          is_right = queue.wait();
          ns.push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
        }
        if (!is_right) {
          std::printf("   failed");
          refused.push_back(one.name);
          break;
        }
        const double us = percentile(ns, 0.5) / 1e3;
        std::printf("%9.2f", us);
        file.add_row({{"kind", "latency"},
                      {"engine", engine},
                      {"to_host", to_host},
                      {"candidate", one.name},
                      {"size", size},
                      {"us_p50", us}});
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

// A copy engine in each direction that copies for ever, until `ends`.
std::vector<std::thread> bench::start_load(const std::atomic<bool>& ends) {
  std::vector<std::thread> load;
  for (const bool to_host : {true, false})
    load.emplace_back([this, to_host, &ends] {
      auto queue =
          need(dma::channel::open(space, {engines[to_host ? 0 : 1 % engines.size()], dma::ordering::none, 64}), "channel");
      const std::uint64_t host_side = big_on_host() + kBigBytes + (to_host ? 0 : kLoadBytes),
                          device_side = big_on_device() + kBigBytes + (to_host ? 0 : kLoadBytes);
      while (!ends) {
        const auto number =
            need(queue->copy(to_host ? host_side : device_side, to_host ? device_side : host_side, 4u << 20), "load");
        need(queue->wait(number, kGiveUpNs * 10), "load");
      }
    });
  return load;
}

void bench::late(const candidate& one, unsigned count, bool is_loaded, double seconds) {
  std::vector<counts> seen(engines.size());
  std::atomic<bool> ends{false}, failed{false};
  std::vector<std::thread> running, load;
  if (is_loaded) load = start_load(ends);
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  for (unsigned index = 0; index < count; ++index)
    running.emplace_back([&, index] {
      counts& mine = seen[index % engines.size()];
      raw_channel queue(space, engines[index % engines.size()]);
      std::mt19937_64 random(index + 1);
      std::byte* const place = host + index * kThreadBytes;
      std::uint32_t slot = 0;
      while (monotonic_ns() < end_ns) {
        slot = (slot + 1 + static_cast<std::uint32_t>(random() % (kSlots - 1))) % kSlots;
        const std::size_t size = std::min<std::size_t>((4u << (random() % 15)) + 4 * (random() % 16), kSlotBytes - 256);
        const std::size_t offset = 4 * (random() % 16);
        queue.submit(one.build(queue, host_address + index * kThreadBytes + offset,
                               device_address + slot * kSlotBytes + 4 * (random() % 16), static_cast<std::uint32_t>(size)));
        if (!queue.wait()) {
          failed = true;
          return;
        }
        const auto* words = reinterpret_cast<const volatile std::uint32_t*>(place + offset);
        const std::uint32_t value = pattern(slot);
        const std::size_t n = size / 4, step = n <= 1024 ? 1 : 16;
        const auto find_late = [&]() -> std::size_t {  // from the end, in bytes; 0: all there
          for (std::size_t i = 0; i < n; i += step)
            if (words[n - 1 - i] != value) return (i + 1) * 4;
          return words[0] != value ? n * 4 : 0;
        };
        ++mine.checked;
        const std::size_t first = find_late();
        if (first == 0) continue;
        const std::uint64_t begin = monotonic_ns();
        while (find_late() != 0 && monotonic_ns() - begin < 10'000'000) {}
        const std::uint64_t took = monotonic_ns() - begin;
        if (took >= 10'000'000) ++mine.wrong;
        ++mine.late;
        if (mine.max_late_ns < took) mine.max_late_ns = took;
        if (mine.late_bytes_from_end < first) mine.late_bytes_from_end = first;
      }
    });
  for (auto& thread : running) thread.join();
  ends = true;
  for (auto& thread : load) thread.join();
  std::printf("  %-26s %2u threads %-4s", one.name, count, is_loaded ? "load" : "idle");
  for (std::size_t i = 0; i < engines.size() && i < count; ++i) {
    std::printf("  C%u %llu/%llu(%.1fus,%lluB)%s", engines[i], static_cast<unsigned long long>(seen[i].late),
                static_cast<unsigned long long>(seen[i].checked), static_cast<double>(seen[i].max_late_ns) / 1e3,
                static_cast<unsigned long long>(seen[i].late_bytes_from_end), seen[i].wrong != 0 ? " WRONG" : "");
    file.add_row({{"kind", "late"},
                  {"candidate", one.name},
                  {"threads", count},
                  {"is_loaded", is_loaded},
                  {"engine", engines[i]},
                  {"copies", seen[i].checked.load()},
                  {"late", seen[i].late.load()},
                  {"wrong", seen[i].wrong.load()},
                  {"max_late_ns", seen[i].max_late_ns.load()},
                  {"bytes_from_end", seen[i].late_bytes_from_end.load()}});
  }
  std::printf("%s\n", failed ? " FAILED" : "");
  std::fflush(stdout);
}

// Whether a line whose eight words have all changed is there whole. `is_congruent`: source and destination lie alike in
// their lines. Every word is looked at.
void bench::torn(unsigned count, bool is_loaded, bool is_congruent, double seconds) {
  std::atomic<std::uint64_t> checked{0}, bad{0}, stuck{0}, bad_lines{0};
  std::atomic<bool> ends{false};
  std::vector<std::thread> running, load;
  if (is_loaded) load = start_load(ends);
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  const marks mark;
  for (unsigned index = 0; index < count; ++index)
    running.emplace_back([&, index] {
      raw_channel queue(space, engines[index % engines.size()]);
      std::mt19937_64 random(index + 1);
      std::byte* const mine = host + index * kThreadBytes;
      std::uint64_t n = 0;
      for (; monotonic_ns() < end_ns; ++n) {
        const auto slot = static_cast<std::uint32_t>(random() % kSlots);
        const std::size_t shift = 4 * (random() % 16), other = is_congruent ? shift : 4 * (random() % 16);
        const std::size_t size = std::min<std::size_t>((4u << (random() % 13)) + 4 * (random() % 16), 32u << 10);
        const std::size_t lines = (shift + size + 63) / 64;
        set_marks(mine, lines * 64, mark.value);
        queue.submit(kCandidates[0].build(queue, host_address + index * kThreadBytes + shift,
                                          device_address + slot * kSlotBytes + other, static_cast<std::uint32_t>(size)));
        // What the copy covers, by 8 byte words: those place both ends in part.
        const auto* words = reinterpret_cast<const volatile std::uint64_t*>(mine);
        const std::size_t first = shift / 8, last = (shift + size - 1) / 8;
        const std::uint64_t begin = monotonic_ns();
        bool is_there = false;
        for (std::size_t i = first; i <= last; ++i)
          for (unsigned polls = 1; !(is_there = words[i] != mark.value) && monotonic_ns() - begin < kGiveUpNs; ++polls)
            if (polls % 1024 == 0) queue.ring();
        const auto* halves = reinterpret_cast<const volatile std::uint32_t*>(mine + shift);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < size / 4; ++i) wrong += halves[i] != pattern(slot);
        if (wrong != 0) ++bad, bad_lines += wrong;
        if (!is_there) ++stuck;
        if (!queue.wait()) break;
      }
      checked += n;
    });
  for (auto& thread : running) thread.join();
  ends = true;
  for (auto& thread : load) thread.join();
  std::printf(
      "  words that changed are whole: %2u threads %-4s %-13s %llu copies, %llu with half words (%llu), %llu never "
      "changed\n",
      count, is_loaded ? "load" : "idle", is_congruent ? "congruent" : "any alignment",
      static_cast<unsigned long long>(checked), static_cast<unsigned long long>(bad),
      static_cast<unsigned long long>(bad_lines), static_cast<unsigned long long>(stuck));
  file.add_row({{"kind", "torn"},
                {"threads", count},
                {"is_loaded", is_loaded},
                {"is_congruent", is_congruent},
                {"copies", checked.load()},
                {"bad", bad.load()},
                {"stuck", stuck.load()}});
  std::fflush(stdout);
}

void bench::by_submission() {
  static constexpr const char* kNames[] = {"three fences", "before position, doorbell", "before doorbell", "none"};
  std::printf(
      "\nsubmission of 4 KiB to the host, one at a time: CPU ns p50, until the word us p50, p99.9; rung again of copies\n");
  for (unsigned fencing = 0; fencing < 4; ++fencing) {
    raw_channel queue(space, engines[0]);
    std::vector<std::uint32_t> cost, whole;
    std::uint64_t rings = 0, wrong = 0;
    std::mt19937_64 random(fencing);
    const std::uint64_t end_ns = monotonic_ns() + 1'500'000'000;
    std::uint32_t slot = 0;
    while (monotonic_ns() < end_ns) {
      slot = (slot + 1 + static_cast<std::uint32_t>(random() % (kSlots - 1))) % kSlots;
      const std::uint64_t begin = monotonic_ns();
      queue.submit(kCandidates[1].build(queue, host_address, device_address + slot * kSlotBytes, 4096),
                   static_cast<fences>(fencing));
      const std::uint64_t given = monotonic_ns();
      if (!queue.wait_ringing(30'000, rings)) {
        std::printf("  lost for good\n");
        break;
      }
      whole.push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
      cost.push_back(static_cast<std::uint32_t>(given - begin));
      const auto* words = reinterpret_cast<const std::uint32_t*>(host);
      wrong += words[0] != pattern(slot) || words[1023] != pattern(slot);
    }
    const double cost_ns = percentile(cost, 0.5), us = percentile(whole, 0.5) / 1e3;
    std::printf("  %-28s %6.0f ns %7.2f us %7.2f us   %llu of %zu, wrong %llu\n", kNames[fencing], cost_ns, us,
                percentile(whole, 0.999) / 1e3, static_cast<unsigned long long>(rings), whole.size(),
                static_cast<unsigned long long>(wrong));
    file.add_row({{"kind", "submission"},
                  {"case", kNames[fencing]},
                  {"ns_p50", cost_ns},
                  {"us_p50", us},
                  {"rings", rings},
                  {"copies", whole.size()},
                  {"wrong", wrong}});
    std::fflush(stdout);
  }
  std::printf("submission of 512 one behind the other (4 B each), CPU ns each; all there\n");
  for (unsigned fencing = 0; fencing < 3; ++fencing) {
    raw_channel queue(space, engines[0]);
    std::uint64_t rings = 0;
    double best = 1e9;
    bool is_right = true;
    for (int round = 0; round < 300 && is_right; ++round) {
      const std::uint64_t begin = monotonic_ns();
      for (int i = 0; i < 512; ++i)
        queue.submit(kCandidates[0].build(queue, host_address, device_address, 4), static_cast<fences>(fencing));
      best = std::min(best, static_cast<double>(monotonic_ns() - begin) / 512);
      is_right = queue.wait_ringing(1'000'000, rings);
    }
    std::printf("  %-28s %6.0f ns, rung again %llu%s\n", kNames[fencing], best, static_cast<unsigned long long>(rings),
                is_right ? "" : " LOST");
  }
}

// Whether an unfenced streaming load sees what an engine wrote since the last one, and what each kind of read takes.
__attribute__((target("sse4.1"), noinline)) void stream_line(void* target, const void* origin) {
  auto* source = static_cast<__m128i*>(const_cast<void*>(origin));
  const __m128i a = _mm_stream_load_si128(source), b = _mm_stream_load_si128(source + 1);
  const __m128i c = _mm_stream_load_si128(source + 2), d = _mm_stream_load_si128(source + 3);
  auto* out = static_cast<__m128i*>(target);
  _mm_storeu_si128(out, a);
  _mm_storeu_si128(out + 1, b);
  _mm_storeu_si128(out + 2, c);
  _mm_storeu_si128(out + 3, d);
}

void bench::streaming_loads() {
  raw_channel queue(space, engines[0]);
  const std::byte* const line = view + kSlots * kSlotBytes;  // thread 0's memory on the device
  alignas(64) std::uint32_t got[16];
  struct kind {
    const char* name;
    void (*before)();
  };
  const kind kinds[] = {{"no fence", [] {}},
                        {"lfence", [] { _mm_lfence(); }},
                        {"sfence", [] { _mm_sfence(); }},
                        {"mfence", [] { _mm_mfence(); }},
                        {"locked add", [] {
                           asm volatile("lock; addl $0,-64(%%rsp)" ::: "memory", "cc");
                         }}};
  std::printf("\nstreaming loads of a 64 B line: ns p50 alone; old values when an engine wrote the line before\n");
  for (const auto& one : kinds) {
    std::vector<std::uint32_t> ns;
    for (int i = 0; i < 20000; ++i) {
      const std::uint64_t begin = monotonic_ns();
      one.before();
      stream_line(got, line);
      _mm_lfence();
      ns.push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
    }
    const double median = percentile(ns, 0.5), low = percentile(ns, 0.01);
    unsigned old = 0, rounds = 20000;
    for (std::uint32_t i = 1; i <= rounds; ++i) {
      dma::command_writer writer({queue.room(), raw_channel::kSlotWords});
      queue.name(writer, queue.next());
      writer.fill(device_address + kSlots * kSlotBytes, i, 16, 2 | 8 | 4);
      stream_line(got, line);  // so that a buffer may hold it
      queue.submit(writer.words());
      if (!queue.wait()) break;
      one.before();
      stream_line(got, line);
      _mm_lfence();
      old += got[0] != i || got[15] != i;
    }
    unsigned stores_old = 0;  // the same after this thread's own stores through the mapping
    for (std::uint32_t i = 1; i <= rounds; ++i) {
      stream_line(got, line);
      __atomic_store_n(reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(line)), i, __ATOMIC_RELAXED);
      one.before();
      stream_line(got, line);
      _mm_lfence();
      stores_old += got[0] != i;
    }
    unsigned repeated = 0;  // without anything between two loads: fencing many are quicker than a round trip can be
    for (const auto value : ns) repeated += value < 500;
    std::printf(
        "  %-12s %6.0f (1 %%: %5.0f) ns, %u of %u old behind an engine, %u behind own stores, %u quicker than 0.5 us\n",
        one.name, median, low, old, rounds, stores_old, repeated);
    file.add_row({{"kind", "streaming"}, {"fence", one.name}, {"ns_p50", median}, {"old", old}, {"old_own", stores_old}});
    std::fflush(stdout);
  }
  for (const std::uint32_t bytes : {64u, 128u, 256u}) {
    std::vector<std::byte> out(4096);
    std::printf("  %u B:", bytes);
    for (const auto& ops : arch::supported_copy_ops()) {
      const double us = p50_us(20000, [&] {
        ops.read(out.data(), line, bytes);
        _mm_lfence();
        return true;
      });
      const double fenced = p50_us(20000, [&] {
        _mm_mfence();
        ops.read(out.data(), line, bytes);
        _mm_lfence();
        return true;
      });
      std::printf(" %s %.2f (mfence %.2f)", ops.name, us, fenced);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 1;
  std::string only, path;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    else path = argv[i];
  }
  const auto cuda = need(cu::driver(), "libcuda");
  ::bench run(*cuda, "dma_barrier_bench");
  run.set_up();
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("latency"))
    for (std::size_t i = 0; i < run.engines.size(); ++i) run.latency(run.engines[i], i == 0);
  if (wanted("submission")) run.by_submission();
  const std::pair<unsigned, bool> companies[] = {{1, false}, {run.threads, false}, {run.threads, true}};
  if (wanted("torn"))
    for (const auto& [count, is_loaded] : companies)
      for (const bool is_congruent : {true, false}) run.torn(count, is_loaded, is_congruent, seconds);
  if (wanted("streaming")) run.streaming_loads();
  if (wanted("late")) {
    std::printf("\nlate: engine late/copies (at most us, most bytes from the end)\n");
    for (const auto& [count, is_loaded] : companies)
      for (const auto& one : kCandidates)
        if (std::find(run.refused.begin(), run.refused.end(), one.name) == run.refused.end())
          run.late(one, count, is_loaded, count == 1 ? seconds / 2 : seconds);
  }
  if (!path.empty()) need(run.file.write(path), "result file");
  std::printf("end\n");
  std::fflush(stdout);
  _exit(0);
}
