// SPDX-License-Identifier: Apache-2.0
// Device to host, on a real GPU: which way of going about it is the quickest.
//   engine   the GPU engine's kernel: looks at the descriptor under way at a time, words loaded before they are stored, done
//            word by fence or by release, kind of stores, threads and workers of a copy; microseconds, median
//   bounce   the ring of pinned chunks: size of a chunk, threads, stores to the destination; GB/s, median
// Variants take turns of a few milliseconds, so that the machine's moods hit all of them. Every way is compared byte by byte
// once before it is timed.
//
//     engine_bench [seconds]       about half of them for each table, 30 in all by default
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "bench/must.hpp"
#include "copy/bounce.hpp"
#include "copy/gpu_engine.hpp"
#include "copy/pinned_buffer.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 64u << 20;

struct scene {
  const cu::driver_table& cuda;
  copy::gpu_context context;
  cu::device_ptr device = 0;
  copy::pinned_buffer pinned;
  std::vector<unsigned char> pageable, truth;

  explicit scene(const cu::driver_table& table) : cuda(table), context(must(copy::find_context(table, 0, nullptr))) {
    auto scope = must(copy::context_use::enter(context));
    pinned = must(copy::pinned_buffer::make(context, kBytes));
    pageable.assign(kBytes, 1);
    truth.resize(kBytes);
    std::uint64_t state = 88172645463325252u;
    for (std::size_t i = 0; i < kBytes; i += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(&truth[i], &state, 8);
    }
    if (cuda.cuMemAlloc_v2(&device, kBytes) != cu::error_code::success) die("no device memory");
    if (cuda.cuMemcpyHtoD_v2(device, truth.data(), kBytes) != cu::error_code::success) die("filling the device memory");
  }
};

// One way of doing something, and how long it took.
struct entry {
  std::string name;
  std::function<bool()> call;  // false: not taken this time
  std::vector<double> samples_ns;
};

void sample(entry& one, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    const std::uint64_t begin = ticks_ordered();
    if (one.call()) one.samples_ns.push_back(ticks_to_ns(ticks_ordered() - begin));
  }
}

void prove(const scene& setup, entry& one, unsigned char* dst, std::size_t bytes) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::memset(dst, 0x5A, bytes);
    if (!one.call()) {
      usleep(100);  // a kernel relieves another
      continue;
    }
    if (std::memcmp(dst, setup.truth.data(), bytes) != 0) die(one.name + " copies wrong bytes");
    return;
  }
  die(one.name + " is never taken");
}

// ---- engine -----------------------------------------------------------------------------------------------------------

struct variant {
  const char* name;
  unsigned threads;
};
constexpr variant kVariants[] = {{"256 threads", 256}, {"128 threads", 128}, {"512 threads", 512}};

struct engine_cell {
  std::size_t bytes;
  unsigned workers;  // 0: low latency
};
constexpr engine_cell kCells[] = {{64, 0},       {1024, 0},      {4096, 0},      {16384, 0},    {32768, 0},    {4096, 1},
                                  {16 << 10, 1}, {16 << 10, 2},  {32 << 10, 2},  {64 << 10, 1}, {64 << 10, 2}, {64 << 10, 4},
                                  {64 << 10, 8}, {256 << 10, 2}, {256 << 10, 4}, {256 << 10, 8}};

entry engine_entry(const scene& setup, copy::gpu_engine& engine, const engine_cell& cell, const char* name) {
  auto* const dst = reinterpret_cast<unsigned char*>(setup.pinned.data());
  if (cell.workers == 0)
    return {format("%s: %zu B", name, cell.bytes),
            [&setup, &engine, dst, cell] {
              return must(engine.read_low_latency(dst, setup.device, cell.bytes)) == copy::gpu_engine::fate::done;
            },
            {}};
  return {format("%s: %zu B x%u", name, cell.bytes, cell.workers),
          [&setup, &engine, cell] {
            auto begun = must(engine.begin_copy(
                {copy::direction::to_host, setup.pinned.device_address(), setup.device, cell.bytes}, cell.workers));
            return must(engine.wait(begun)) == copy::gpu_engine::fate::done;
          },
          {}};
}

void compare_engines(const scene& setup, double seconds) {
  auto maps = must(open_backend({&default_device_io(), &setup.cuda}, "auto"));
  struct contender {
    std::unique_ptr<copy::gpu_engine> engine;
    std::vector<entry> cells;
  };
  std::vector<contender> all;
  for (const auto& one : kVariants) {
    copy::gpu_engine::options wanted;
    wanted.shape.threads = setup.cuda.is_simulated ? 4 : one.threads;
    wanted.shape.workers = setup.cuda.is_simulated ? 2 : 8;
    wanted.lease_us = setup.cuda.is_simulated ? 20'000 : 200;
    auto& made = all.emplace_back();
    made.engine = must(copy::gpu_engine::open(setup.context, *maps, wanted));
    for (const auto& cell : kCells) made.cells.push_back(engine_entry(setup, *made.engine, cell, one.name));
  }
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  for (bool is_first = true; is_first || monotonic_ns() < end_ns; is_first = false)
    for (auto& one : all) {
      const auto hot = must(one.engine->keep_hot());
      must(one.engine->start_and_wait(5'000'000));
      for (std::size_t i = 0; i < one.cells.size(); ++i) {
        if (is_first) prove(setup, one.cells[i], reinterpret_cast<unsigned char*>(setup.pinned.data()), kCells[i].bytes);
        sample(one.cells[i], 20);
      }
    }
  std::printf("\nGPU engine, device to pinned host memory, us (ll: low-latency lines; xN: copy by N workers)\n%-34s", "");
  for (const auto& cell : kCells)
    std::printf("%11s", format("%s%s", format_size(cell.bytes).c_str(),
                               cell.workers == 0 ? " ll" : format(" x%u", cell.workers).c_str())
                            .c_str());
  std::printf("\n");
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::printf("%-34s", kVariants[i].name);
    for (const auto& cell : all[i].cells) std::printf("%11.2f", summarize(cell.samples_ns).p50 / 1e3);
    std::printf("\n");
  }
}

// ---- bounce -----------------------------------------------------------------------------------------------------------

void compare_rings(const scene& setup, double seconds) {
  constexpr std::size_t kSizes[] = {1u << 20, 4u << 20, 16u << 20, 64u << 20};
  auto dma = must(copy::copy_engine::open(setup.context));
  copy::worker_pool pool({.helpers = 7, .cpus = {}});
  struct contender {
    std::string name;
    std::unique_ptr<copy::bounce_ring> ring;  // null: cuMemcpy
    std::vector<entry> sizes;
  };
  std::vector<contender> all;
  auto* const destination = const_cast<unsigned char*>(setup.pageable.data());
  const auto add = [&](const std::string& name, copy::bounce_ring::options wanted, unsigned width) {
    auto& made = all.emplace_back();
    made.name = name;
    if (width != 0) made.ring = std::make_unique<copy::bounce_ring>(*dma, pool, wanted);
    for (const std::size_t bytes : kSizes)
      made.sizes.push_back({name,
                            [&setup, destination, bytes, width, ring = made.ring.get()] {
                              if (ring != nullptr) must(ring->to_host(destination, setup.device, bytes, width));
                              else if (setup.cuda.cuMemcpyDtoH_v2(destination, setup.device, bytes) !=
                                       cu::error_code::success)
                                die("cuMemcpyDtoH");
                              return true;
                            },
                            {}});
  };
  add("cuMemcpy", {}, 0);
  for (const std::size_t chunk : {256u << 10, 512u << 10, 1u << 20})
    for (const unsigned width : {2u, 4u, 8u})
      add(format("%4zu KiB chunks, %u threads", chunk >> 10, width), {chunk, static_cast<unsigned>((8u << 20) / chunk)},
          width);
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  for (unsigned round = 0; round < 2 || monotonic_ns() < end_ns; ++round)
    for (auto& one : all)
      for (std::size_t i = 0; i < one.sizes.size(); ++i) {
        if (round == 0) prove(setup, one.sizes[i], destination, kSizes[i]);
        else sample(one.sizes[i], kSizes[i] > (4u << 20) ? 2 : 5);
      }
  std::printf("\nring of pinned chunks, device to pageable host memory, GB/s\n%-40s", "");
  for (const std::size_t bytes : kSizes) std::printf("%9s", format_size(bytes).c_str());
  std::printf("\n");
  for (const auto& one : all) {
    std::printf("%-40s", one.name.c_str());
    for (std::size_t i = 0; i < one.sizes.size(); ++i) {
      const double ns = one.sizes[i].samples_ns.empty() ? 0 : summarize(one.sizes[i].samples_ns).p50;
      std::printf("%9.1f", ns > 0 ? static_cast<double>(kSizes[i]) / ns : 0.0);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 30;
  const auto* const cuda = must(cu::driver());
  must(cu::initialize(*cuda));
  const scene setup(*cuda);
  const auto current = must(copy::context_use::enter(setup.context));
  compare_engines(setup, seconds / 2);
  compare_rings(setup, seconds / 2);
  return 0;
}
