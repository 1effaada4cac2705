// SPDX-License-Identifier: Apache-2.0
// Copies between GPU memory and memory of ours through which data passes: waited for by a word or known by the bytes
// themselves, copied on by one CPU thread or several; and writes through the mapping beside copies by channel.
//
//     dma_pass_bench [--only PART] [FILE.json]
#include <immintrin.h>

#include "bench/raw_channel.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

// ---- Marks: lines hold a value that data does not have; all eight words of a line changed means that it is there

// Copies lines as they arrive. False: some line still is the mark although `is_over`.
template <class IsOver>
__attribute__((target("avx512f,avx512bw"), noinline)) bool chase(std::byte* target, std::byte* origin, std::size_t bytes,
                                                                 std::uint64_t value, bool set_again, IsOver is_over) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(value));
  std::size_t i = 0;
  for (; i + 256 <= bytes; i += 256) {
    for (;;) {
      const __m512i a = _mm512_load_si512(origin + i), b = _mm512_load_si512(origin + i + 64);
      const __m512i c = _mm512_load_si512(origin + i + 128), d = _mm512_load_si512(origin + i + 192);
      const auto left = static_cast<unsigned>(_mm512_cmpeq_epi64_mask(a, mark)) | _mm512_cmpeq_epi64_mask(b, mark) |
                        _mm512_cmpeq_epi64_mask(c, mark) | _mm512_cmpeq_epi64_mask(d, mark);
      if (left == 0) {
        _mm512_storeu_si512(target + i, a);
        _mm512_storeu_si512(target + i + 64, b);
        _mm512_storeu_si512(target + i + 128, c);
        _mm512_storeu_si512(target + i + 192, d);
        if (set_again) {
          _mm512_store_si512(origin + i, mark);
          _mm512_store_si512(origin + i + 64, mark);
          _mm512_store_si512(origin + i + 128, mark);
          _mm512_store_si512(origin + i + 192, mark);
        }
        break;
      }
      if (is_over()) return false;
    }
  }
  for (; i < bytes; i += 64) {
    for (;;) {
      const __m512i a = _mm512_load_si512(origin + i);
      if (_mm512_cmpeq_epi64_mask(a, mark) == 0) {
        _mm512_storeu_si512(target + i, a);
        if (set_again) _mm512_store_si512(origin + i, mark);
        break;
      }
      if (is_over()) return false;
    }
  }
  return true;
}

template <class IsOver>
__attribute__((target("avx512f,avx512bw"), noinline)) bool has_changed(const std::byte* place, std::size_t bytes,
                                                                       std::uint64_t value, IsOver is_over) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(value));
  for (std::size_t i = 0; i < bytes; i += 64)
    while (_mm512_cmpeq_epi64_mask(_mm512_load_si512(place + i), mark) != 0)
      if (is_over()) return false;
  return true;
}

template <std::size_t Ahead>
__attribute__((target("avx512f"), noinline)) void copy_ahead(std::byte* target, const std::byte* origin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(origin + i + Ahead), _MM_HINT_T0);
    _mm512_storeu_si512(target + i, _mm512_load_si512(origin + i));
  }
}

struct bench : channel_bench {
  using channel_bench::channel_bench;
  void by_marks();
  void writes();
};

// Copies to the host that are known to be complete by their bytes.
void bench::by_marks() {
  const marks mark;
  raw_channel queue(space, engines[0]);
  std::byte* const bounce = big_host();
  std::vector<std::byte> room((4u << 20) + 4096);
  std::byte* const target = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096);
  std::memset(target, 1, 4u << 20);
  const auto over = [&] {
    static thread_local unsigned polls = 0;
    if (++polls % 1024 == 0) queue.ring();
    return polls % 65536 == 0 && queue.is_broken();
  };
  std::printf("\nby marks, us p50                  ");
  const std::vector<std::uint32_t> sizes{64, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144, 1u << 20, 4u << 20};
  for (const auto size : sizes) std::printf("%9u", size);
  const auto row = [&](const char* name, unsigned fence, auto run) {
    std::printf("\n  %-32s", name);
    for (const auto size : sizes) {
      if (!queue.wait()) std::printf(" (no word)");
      const double us = p50_us(size > 100000 ? 300 : 2000, [&] { return run(size, static_cast<fences>(fence)); });
      std::printf("%9.2f", us);
      std::fflush(stdout);
      file.add_row({{"kind", "marks"}, {"case", name}, {"size", size}, {"us_p50", us}});
    }
  };
  for (const unsigned fence : {1u}) {
    std::printf("\n %s", fence == 0 ? "three fences" : "one fence");
    row("direct, no flush, word", fence, [&](std::uint32_t n, fences fencing) {
      queue.submit(kCandidates[0].build(queue, big_on_host(), big_on_device(), n), fencing);
      return queue.wait();
    });
    row("direct, flush, word", fence, [&](std::uint32_t n, fences fencing) {
      queue.submit(kCandidates[1].build(queue, big_on_host(), big_on_device(), n), fencing);
      return queue.wait();
    });
    row("direct, marks before and looked at", fence, [&](std::uint32_t n, fences fencing) {
      set_marks(bounce, n, mark.value);
      queue.submit(kCandidates[0].build(queue, big_on_host(), big_on_device(), n), fencing);
      return has_changed(bounce, n, mark.value, over);
    });
    (void)queue.wait();
    set_marks(bounce, kBigBytes, mark.value);
    row("bounce, chased, marked while copying", fence, [&](std::uint32_t n, fences fencing) {
      queue.submit(kCandidates[0].build(queue, big_on_host(), big_on_device(), n), fencing);
      return chase(target, bounce, n, mark.value, true, over);
    });
    (void)queue.wait();
    set_marks(bounce, kBigBytes, mark.value);
    row("bounce, chased, marked behind", fence, [&](std::uint32_t n, fences fencing) {
      queue.submit(kCandidates[0].build(queue, big_on_host(), big_on_device(), n), fencing);
      if (!chase(target, bounce, n, mark.value, false, over)) return false;
      set_marks(bounce, n, mark.value);
      return true;
    });
    (void)queue.wait();
    set_marks(bounce, kBigBytes, mark.value);
    row("bounce, chased, parts of 64 KiB", fence, [&](std::uint32_t n, fences fencing) {  // a ring of 256 KiB stays in L2
      constexpr std::uint32_t kPart = 64u << 10, kRing = 4;
      std::uint32_t begun = 0;
      const auto begin = [&] {
        if (begun * kPart >= n) return;
        const std::uint32_t bytes = std::min(kPart, n - begun * kPart);
        queue.submit(
            kCandidates[0].build(queue, big_on_host() + begun % kRing * kPart, big_on_device() + begun * kPart, bytes),
            fencing);
        ++begun;
      };
      for (std::uint32_t i = 0; i < kRing; ++i) begin();
      for (std::uint32_t part = 0; part * kPart < n; ++part) {
        if (!chase(target + part * kPart, bounce + part % kRing * kPart, std::min(kPart, n - part * kPart), mark.value, true,
                   over))
          return false;
        begin();
      }
      return true;
    });
    (void)queue.wait();
    set_marks(bounce, kBigBytes, mark.value);
    row("bounce, flush, word, memcpy", fence, [&](std::uint32_t n, fences fencing) {
      queue.submit(kCandidates[1].build(queue, big_on_host(), big_on_device(), n), fencing);
      if (!queue.wait()) return false;
      std::memcpy(target, bounce, n);
      return true;
    });
    const auto ahead = [&](const char* name, auto copy) {
      row(name, fence, [&](std::uint32_t n, fences fencing) {
        constexpr std::uint32_t kRing = 4;
        const std::uint32_t part_bytes = std::clamp(n / 4, 16384u, 65536u);
        std::uint32_t begun = 0, first = queue.next();
        const auto begin = [&] {
          if (begun * part_bytes >= n) return;
          queue.submit(
              kCandidates[7].build(queue, big_on_host() + begun % kRing * part_bytes, big_on_device() + begun * part_bytes,
                                   std::min(part_bytes, n - begun * part_bytes)),
              fencing);
          ++begun;
        };
        for (std::uint32_t i = 0; i < kRing; ++i) begin();
        for (std::uint32_t part = 0; part * part_bytes < n; ++part) {
          for (unsigned polls = 1; static_cast<std::int32_t>(queue.seen() - (first + part)) < 0; ++polls)
            if (polls % 4096 == 0) queue.ring();
          copy(target + part * part_bytes, bounce + part % kRing * part_bytes, std::min(part_bytes, n - part * part_bytes));
          begin();
        }
        return true;
      });
    };
    ahead("parts, settled, memcpy", [](std::byte* a, const std::byte* b, std::size_t n) { std::memcpy(a, b, n); });
    ahead("parts, settled, ahead 512", [](std::byte* a, const std::byte* b, std::size_t n) { copy_ahead<512>(a, b, n); });
    ahead("parts, settled, ahead 1024", [](std::byte* a, const std::byte* b, std::size_t n) { copy_ahead<1024>(a, b, n); });
    ahead("parts, settled, ahead 2048", [](std::byte* a, const std::byte* b, std::size_t n) { copy_ahead<2048>(a, b, n); });
    ahead("parts, settled, ahead 4096", [](std::byte* a, const std::byte* b, std::size_t n) { copy_ahead<4096>(a, b, n); });
  }
  std::printf("\n  several threads chase (hot), 64 KiB and 1 MiB:");
  for (const unsigned width : {2u, 4u, 8u}) {
    for (const std::uint32_t n : {65536u, 1u << 20}) {
      set_marks(bounce, kBigBytes, mark.value);
      std::atomic<unsigned> round{0}, done{0};
      std::atomic<bool> stop{false};
      std::vector<std::thread> helpers;
      const std::uint32_t share = n / width;
      for (unsigned i = 1; i < width; ++i)
        helpers.emplace_back([&, i] {
          for (unsigned last = 0; !stop;) {
            if (round.load(std::memory_order_acquire) == last) {
              _mm_pause();
              continue;
            }
            ++last;
            chase(target + i * share, bounce + i * share, share, mark.value, true, [&] { return stop.load(); });
            done.fetch_add(1, std::memory_order_release);
          }
        });
      const double us = p50_us(1000, [&] {
        queue.submit(kCandidates[0].build(queue, big_on_host(), big_on_device(), n), fences::before_doorbell);
        done.store(0, std::memory_order_relaxed);
        round.fetch_add(1, std::memory_order_release);
        if (!chase(target, bounce, share, mark.value, true, over)) return false;
        while (done.load(std::memory_order_acquire) != width - 1) {}
        return true;
      });
      stop = true;
      for (auto& one : helpers) one.join();
      std::printf("  x%u %.2f", width, us);
      file.add_row({{"kind", "marks_threads"}, {"threads", width}, {"size", n}, {"us_p50", us}});
    }
  }
  std::printf("\n");
}

// One thread's stores into the mapping and copies by channel out of pinned memory.
void bench::writes() {
  std::byte* const target = view + (big_on_device() - device_address);
  std::vector<std::byte> room((4u << 20) + 4096);
  std::byte* const origin = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096);
  std::memset(origin, 7, 4u << 20);
  const std::vector<std::uint32_t> sizes{256, 1024, 4096, 8192, 16384, 32768, 65536, 262144, 1u << 20, 4u << 20};
  std::printf("\nwrites by one thread, us p50     ");
  for (const auto size : sizes) std::printf("%9u", size);
  const auto row = [&](const std::string& name, auto run) {
    std::printf("\n  %-30s", name.c_str());
    for (const auto size : sizes) {
      const double us = p50_us(size > 1000000 ? 60 : 300, [&] { return run(size); });
      std::printf("%9.2f", us);
      std::fflush(stdout);
      file.add_row({{"kind", "writes"}, {"case", name}, {"size", size}, {"us_p50", us}});
    }
  };
  for (const auto& ops : arch::supported_copy_ops())
    row(std::string("stores, ") + ops.name, [&](std::uint32_t n) {
      ops.write(target, origin, n);
      arch::publish_to_device(arch::mapping_type::wc);
      return true;
    });
  raw_channel queue(space, engines[engines.size() > 1 ? 1 : 0]);
  std::byte* const bounce = big_host();
  for (const std::uint32_t part : {16u << 10, 32u << 10, 64u << 10, 128u << 10})
    for (const std::uint32_t parts : {4u, 8u})
      for (const bool past : {false, true})
        row(format("bounce, %u x %u KiB%s", parts, part >> 10, past ? ", past caches" : ""), [&](std::uint32_t n) {
          std::uint32_t given = 0;
          const std::uint32_t first = queue.next();
          for (std::uint32_t done = 0; done < n; done += part, ++given) {
            if (given >= parts)
              while (static_cast<std::int32_t>(queue.seen() - (first + given - parts)) < 0) {}
            const std::uint32_t bytes = std::min(part, n - done);
            std::byte* const slot = bounce + given % parts * part;
            if (past) arch::copy_to(arch::mapping_type::wc, slot, origin + done, bytes);
            else std::memcpy(slot, origin + done, bytes);
            const bool is_last = done + bytes == n;
            queue.submit(kCandidates[is_last ? 2 : 0].build(queue, big_on_device() + done,
                                                            big_on_host() + given % parts * part, bytes),
                         fences::before_position_and_doorbell);
          }
          return queue.wait();
        });
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, path;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    else path = argv[i];
  }
  const auto cuda = need(cu::driver(), "libcuda");
  ::bench run(*cuda, "dma_pass_bench");
  run.set_up();
  if (only.empty() || only == "marks") run.by_marks();
  if (only.empty() || only == "writes") run.writes();
  if (!path.empty()) need(run.file.write(path), "result file");
  std::printf("end\n");
  std::fflush(stdout);
  _exit(0);
}
