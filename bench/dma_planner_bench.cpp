// SPDX-License-Identifier: Apache-2.0
// The planner's copies by DMA channel on a real GPU: all kinds of memory, registered copies and lists beside CUDA's in the
// same turns, freed memory given back, cudaFree beside copies; copies in stream order and pageable memory through rings,
// both beside CUDA's and whether their variables are set or not.
//
//     dma_planner_bench [--only PART] [--calibrate TEXT_FILE] [FILE.json]
//
// `--calibrate` first measures this machine's costs, writes them and lets the planner choose by them. The part `choices`
// compares what the planner chooses with the best single way, in turns.
//
// Exit code 1 if anything is wrong.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/channel_setup.hpp"
#include "copy/calibration.hpp"
#include "copy/completion.hpp"
#include "copy/planner.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;
using namespace pl::bench;
using copy::direction;
using copy::transfer;

constexpr std::size_t kBytes = 128u << 20;
int failures = 0;

void check(bool is_right, const std::string& step) {
  if (is_right) return;
  ++failures;
  std::printf("WRONG: %s\n", step.c_str());
}
double time_once_ns(const std::function<void()>& run) {
  const std::uint64_t begin = ticks_ordered();
  run();
  return ticks_to_ns(ticks_ordered() - begin);
}

struct bench : channel_setup {
  using channel_setup::channel_setup;
  cu::device_ptr device = 0, second = 0;
  cu::stream_t stream = nullptr;
  std::byte* host = nullptr;
  std::unique_ptr<copy::planner> planner, by_cuda;  // the second orders copies and streams by CUDA
  std::uint64_t by_channel() const {
    return planner->counts().copies[static_cast<std::size_t>(copy::method::dma_channel)] +
           planner->counts().copies[static_cast<std::size_t>(copy::method::dma_bounce)] +
           planner->counts().copies[static_cast<std::size_t>(copy::method::dma_ring)];
  }
  void set_up();
  void check_memory(const char* kind, cu::device_ptr gpu, void* memory, bool goes_by_channel);
  void check_kinds();
  void time_copies();
  void time_fills();
  void time_lists();
  void check_freed();
  void time_free();
  void time_stream_order();
  void time_rings();
  void open_planners(const std::string& costs);
  void calibrate(const char* path);
  void time_choices();
};

void bench::set_up() {
  open_cuda();
  must(cuda.cuMemAlloc_v2(&device, kBytes), "cuMemAlloc");
  must(cuda.cuMemAlloc_v2(&second, kBytes), "cuMemAlloc");
  must(cuda.cuStreamCreate(&stream, 1), "cuStreamCreate");
  void* pinned = nullptr;
  must(cuda.cuMemHostAlloc(&pinned, kBytes, 0), "cuMemHostAlloc");
  host = static_cast<std::byte*>(pinned);
  open_planners("");
  const std::uint64_t begin_ns = monotonic_ns();
  need(planner->prepare(0), "prepare");
  std::printf("prepared in %.1f ms\n", static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
}

void bench::open_planners(const std::string& costs) {
  planner.reset();
  by_cuda.reset();
  auto wanted = copy::planner::options_from_environment();
  if (!costs.empty()) wanted.costs = costs;
  const auto open = [&](copy::trial order) {
    wanted.stream_order = order;
    wanted.rings = copy::trial::always;
    auto opened = copy::planner::open(cuda, wanted);
    need(opened ? status() : status(opened.error()), "planner");
    return *std::move(opened);
  };
  planner = open(copy::trial::always);
  by_cuda = open(copy::trial::never);
}

void bench::calibrate(const char* path) {
  auto measured = copy::calibrate(cuda, *planner, {.progress = {}});
  need(measured ? status() : status(measured.error()), "calibration");
  const std::string text = measured->text();
  need(copy::write_calibration(text, path), "calibration file");
  open_planners(text);
  need(planner->prepare(0), "prepare");
}

// Each way that can do it, and the planner, in turns; the planner is to be within 5 % and 50 ns of the best.
void bench::time_choices() {
  constexpr std::size_t kMaxBytes = 16u << 20;
  auto* const pageable =
      static_cast<std::byte*>(mmap(nullptr, kMaxBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pageable == MAP_FAILED) need(failure{ENOMEM, "mmap"}, "pageable memory");
  std::memset(pageable, 1, kMaxBytes);
  std::printf("\nthe planner beside the best single way, us p50; + where it is more than 5 %% + 50 ns above\n");
  unsigned points = 0, above = 0;
  for (const direction way : {direction::to_host, direction::to_device, direction::on_device})
    for (const copy::other_side side : {copy::other_side::pinned, copy::other_side::pageable, copy::other_side::same_gpu}) {
      const auto all = copy::candidates(way, side);
      if (all.empty()) continue;
      std::printf("  %s, %s\n", copy::name_of(way), copy::name_of(side));
      for (std::size_t size = 64; size <= kMaxBytes; size = size % 3 == 0 ? size / 3 * 4 : size / 2 * 3) {
        std::byte* const memory = side == copy::other_side::pageable ? pageable : host;
        const std::uint64_t other = way == direction::on_device ? device + kBytes / 2 : copy::address_of(memory);
        const transfer one =
            way == direction::to_host ? transfer{way, other, device, size} : transfer{way, device, other, size};
        std::vector<copy::choice> ways;
        for (const auto& option : all) {
          const auto limits = copy::limits_of(way, option);
          if (size >= limits.least && size <= limits.most && planner->copy_by(option, one)) ways.push_back(option);
        }
        std::vector<std::vector<double>> times_ns(ways.size() + 1);
        const int rounds = size <= 65536 ? 60 : size <= (1u << 20) ? 25 : 9;
        for (int round = 0; round < rounds; ++round)
          for (std::size_t i = 0; i < times_ns.size(); ++i) {
            const auto run = [&] { (void)(i == 0 ? planner->copy(one) : planner->copy_by(ways[i - 1], one)); };
            run();
            for (int turn = 0; turn < 3; ++turn) times_ns[i].push_back(time_once_ns(run));
          }
        std::size_t best = 1;
        std::vector<double> p50_ns;
        for (auto& times : times_ns) p50_ns.push_back(latency_fields(times)["latency_ns_p50"].get<double>());
        for (std::size_t i = 1; i < p50_ns.size(); ++i)
          if (p50_ns[i] < p50_ns[best]) best = i;
        const bool is_above = p50_ns[0] > p50_ns[best] * 1.05 + 50;
        ++points;
        above += is_above;
        std::printf("  %c %9zu %9.2f %9.2f  %s\n", is_above ? '+' : ' ', size, p50_ns[0] / 1e3, p50_ns[best] / 1e3,
                    copy::to_text(ways[best - 1]).c_str());
        file.add_row({{"kind", "choice"},
                      {"direction", copy::name_of(way)},
                      {"side", copy::name_of(side)},
                      {"size_bytes", size},
                      {"planner_ns_p50", p50_ns[0]},
                      {"best_ns_p50", p50_ns[best]},
                      {"best", copy::to_text(ways[best - 1])},
                      {"is_above", is_above}});
      }
    }
  std::printf("  %u of %u points above\n", above, points);
  munmap(pageable, kMaxBytes);
}

// Through GPU memory and back, at sizes that the planner gives to channels.
void bench::check_memory(const char* kind, cu::device_ptr gpu, void* memory, bool goes_by_channel) {
  auto* const words = static_cast<std::uint32_t*>(memory);
  constexpr std::size_t kSize = 1u << 20;
  const std::uint64_t before = by_channel();
  for (std::uint32_t round = 1; round <= 20; ++round) {
    for (std::size_t i = 0; i < kSize / 4; ++i) words[i] = static_cast<std::uint32_t>(i) * 2654435761u + round;
    need(planner->copy({direction::to_device, gpu, copy::address_of(memory), kSize}), kind);
    std::memset(memory, 0, kSize);
    need(planner->copy({direction::to_host, copy::address_of(memory), gpu, kSize}), kind);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kSize / 4; ++i) wrong += words[i] != static_cast<std::uint32_t>(i) * 2654435761u + round;
    check(wrong == 0, format("%s: %zu words in round %u", kind, wrong, round));
  }
  const std::uint64_t taken = by_channel() - before;
  check(goes_by_channel ? taken >= 20 : taken == 0,
        format("%s: %llu copies by channel", kind, static_cast<unsigned long long>(taken)));
  std::printf("%-44s right, %2llu of 40 copies by channel\n", kind, static_cast<unsigned long long>(taken));
  file.add_row({{"kind", "memory"}, {"memory", kind}, {"by_channel", taken}});
}

void bench::check_kinds() {
  check_memory("cuMemAlloc, cuMemHostAlloc", device, host, true);
  void* plain = mmap(nullptr, 4u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  must(cuda.cuMemHostRegister_v2(plain, 4u << 20, 0), "cuMemHostRegister");
  check_memory("cuMemAlloc, cuMemHostRegister", device, plain, true);
  must(cuda.cuMemHostUnregister(plain), "cuMemHostUnregister");
  check_memory("cuMemAlloc, pageable (by rings)", device, plain, true);
  cu::device_ptr pooled = 0;
  if (cuda.cuMemAllocAsync != nullptr) {
    must(cuda.cuMemAllocAsync(&pooled, 4u << 20, stream), "cuMemAllocAsync");
    must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_memory("cuMemAllocAsync, cuMemHostAlloc", pooled, host, true);
    must(cuda.cuMemFreeAsync(pooled, stream), "cuMemFreeAsync");
    must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  cu::device_ptr small[64];
  for (auto& one : small) must(cuda.cuMemAlloc_v2(&one, 4096), "cuMemAlloc");
  auto* const words = reinterpret_cast<std::uint32_t*>(host);
  for (std::uint32_t i = 0; i < 64; ++i) {
    std::fill(words, words + 1024, i + 7);
    need(planner->copy_by({copy::method::dma_channel, 1}, {direction::to_device, small[i], copy::address_of(host), 4096}),
         "small");
  }
  for (std::uint32_t i = 0; i < 64; ++i) {
    need(planner->copy_by({copy::method::dma_channel, 1}, {direction::to_host, copy::address_of(host), small[i], 4096}),
         "small");
    check(words[0] == i + 7 && words[1023] == i + 7, "small allocations that share a block");
    must(cuda.cuMemFree_v2(small[i]), "cuMemFree");
  }
  std::printf("64 allocations of 4 KiB: right\n");
}

void bench::time_copies() {
  auto gpu = planner->register_memory(device, kBytes);
  need(gpu ? status() : status(gpu.error()), "registering GPU memory");
  auto memory = planner->register_host_memory(host, kBytes, 0);
  need(memory ? status() : status(memory.error()), "registering host memory");
  const auto at_host = copy::address_of(host);
  struct contender {
    const char* name;
    std::function<void(std::size_t)> run;
  };
  const copy::choice by_dma{copy::method::dma_channel, 1}, by_bounce{copy::method::dma_bounce, 1};
  const std::vector<contender> contenders{
      {"to_host_registered",
       [&](std::size_t n) {
         (void)planner->copy({direction::to_host, at_host, device, n});
       }},
      {"to_host_channel",
       [&](std::size_t n) {
         (void)planner->copy_by(by_dma, {direction::to_host, at_host, device, n});
       }},
      {"to_host_bounce",  // what is longer than it carries goes by the channel
       [&](std::size_t n) {
         const bool fits = n <= (1u << 20);
         (void)planner->copy_by(fits ? by_bounce : by_dma, {direction::to_host, at_host, device, n});
       }},
      {"to_host_cuda", [&](std::size_t n) { cuda.cuMemcpyDtoH_v2(host, device, n); }},
      {"to_device_registered",
       [&](std::size_t n) {
         (void)planner->copy({direction::to_device, device, at_host, n});
       }},
      {"to_device_channel",
       [&](std::size_t n) {
         (void)planner->copy_by(by_dma, {direction::to_device, device, at_host, n});
       }},
      {"to_device_cuda", [&](std::size_t n) { cuda.cuMemcpyHtoD_v2(device, host, n); }},
  };
  std::printf("\nus, p50 (p99)");
  for (const auto& one : contenders) std::printf(" %21s", one.name);
  std::printf("\n");
  for (const std::size_t size : {64u, 1024u, 4096u, 16384u, 65536u, 262144u, 1u << 20, 16u << 20}) {
    std::vector<std::vector<double>> times_ns(contenders.size());
    const int rounds = size <= (256u << 10) ? 600 : 40;
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        contenders[i].run(size);
        for (int turn = 0; turn < 4; ++turn) times_ns[i].push_back(time_once_ns([&] { contenders[i].run(size); }));
      }
    std::printf("%13zu", size);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto row = latency_fields(times_ns[i]);
      std::printf(" %10.2f (%8.2f)", row["latency_ns_p50"].get<double>() / 1e3, row["latency_ns_p99"].get<double>() / 1e3);
      row["kind"] = "copy";
      row["contender"] = contenders[i].name;
      row["size_bytes"] = size;
      file.add_row(row);
    }
    std::printf("\n");
  }
}

// Fills of GPU memory beside CUDA's, and that each is right.
void bench::time_fills() {
  std::printf("\nfills, us p50            planner        CUDA\n");
  auto* const bytes = reinterpret_cast<unsigned char*>(host);
  unsigned value = 1;
  for (const std::size_t size : {4099u, 16384u, 65536u, 262144u, 1u << 20, 4u << 20, 64u << 20}) {
    std::vector<double> ours_ns, cudas_ns;
    bool is_right = true;
    for (int round = 0; round < 100; ++round) {
      value = value % 255 + 1;
      ours_ns.push_back(
          time_once_ns([&] { need(planner->fill(device + 1, static_cast<unsigned char>(value), size - 1), "fill"); }));
      if (round % 10 == 0) {
        must(cuda.cuMemcpyDtoH_v2(host, device, size), "cuMemcpyDtoH");
        for (std::size_t i = 1; i < size; ++i) is_right &= bytes[i] == value;
      }
      cudas_ns.push_back(time_once_ns([&] {
        must(cuda.cuMemsetD8_v2(device + 1, 0x5a, size - 1), "cuMemsetD8");
        must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
      }));
    }
    check(is_right, format("a fill of %zu bytes", size));
    const auto median = [](std::vector<double>& of_one) {
      std::nth_element(of_one.begin(), of_one.begin() + static_cast<std::ptrdiff_t>(of_one.size() / 2), of_one.end());
      return of_one[of_one.size() / 2];
    };
    const double ours = median(ours_ns), cudas = median(cudas_ns);
    std::printf("%12zu %19.2f %11.2f\n", size, ours / 1e3, cudas / 1e3);
    file.add_row({{"kind", "fill"}, {"size", size}, {"latency_ns_p50", ours}, {"cuda_latency_ns_p50", cudas}});
  }
}

void bench::time_lists() {
  std::printf("\nlists, us p50 and GB/s%12s %20s %20s %20s\n", "", "to host", "to device", "host, one by one");
  struct shape {
    std::size_t count, bytes;
  };
  for (const auto& [count, bytes] : {shape{64, 4096}, {1024, 4096}, {16384, 2048}, {1024, 65536}}) {
    std::vector<transfer> to_host, to_device;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t place = (i * 7919 % count) * bytes;  // scattered on the GPU
      to_host.push_back({direction::to_host, copy::address_of(host) + i * bytes, device + place, bytes});
      to_device.push_back({direction::to_device, device + place, copy::address_of(host) + i * bytes, bytes});
    }
    auto* const words = reinterpret_cast<std::uint32_t*>(host);
    for (std::size_t i = 0; i < count * bytes / 4; ++i) words[i] = static_cast<std::uint32_t>(i) * 40503u;
    need(planner->copy_list(to_device), "list");
    std::memset(host, 0, count * bytes);
    need(planner->copy_list(to_host), "list");
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count * bytes / 4; ++i) wrong += words[i] != static_cast<std::uint32_t>(i) * 40503u;
    check(wrong == 0, format("a list of %zu of %zu B: %zu words", count, bytes, wrong));
    std::vector<double> times_ns[3];
    for (int round = 0; round < 60; ++round) {
      times_ns[0].push_back(time_once_ns([&] { (void)planner->copy_list(to_host); }));
      times_ns[1].push_back(time_once_ns([&] { (void)planner->copy_list(to_device); }));
      times_ns[2].push_back(time_once_ns([&] {
        for (const auto& one : to_host)
          cuda.cuMemcpyDtoHAsync_v2(copy::host_pointer(one.dst), one.src, one.row_bytes, stream);
        cuda.cuStreamSynchronize(stream);
      }));
    }
    std::printf("%6zu x %6zu            ", count, bytes);
    const char* const names[] = {"list_to_host", "list_to_device", "cuda_one_by_one"};
    for (int i = 0; i < 3; ++i) {
      auto row = latency_fields(times_ns[i]);
      const double ns = row["latency_ns_p50"].get<double>();
      std::printf(" %10.2f %9.2f", ns / 1e3, static_cast<double>(count * bytes) / ns);
      row["kind"] = "list";
      row["contender"] = names[i];
      row["blocks"] = count;
      row["size_bytes"] = bytes;
      row["gb_per_s"] = static_cast<double>(count * bytes) / ns;
      file.add_row(row);
    }
    std::printf("\n");
  }
}

// Memory that the application frees goes back to the GPU although a channel had it bound.
void bench::check_freed() {
  constexpr std::size_t kFreedBytes = std::size_t{2} << 30;
  std::vector<double> back_ms;
  for (int round = 0; round < 5; ++round) {
    std::size_t before = 0, now = 0, all = 0;
    must(cuda.cuMemGetInfo_v2(&before, &all), "cuMemGetInfo");
    cu::device_ptr memory = 0;
    must(cuda.cuMemAlloc_v2(&memory, kFreedBytes), "cuMemAlloc");
    need(planner->copy_by({copy::method::dma_channel, 1}, {direction::to_host, copy::address_of(host), memory, 65536}),
         "copy");
    const std::uint64_t begin_ns = monotonic_ns();
    must(cuda.cuMemFree_v2(memory), "cuMemFree");
    while (now < before && monotonic_ns() - begin_ns < 2'000'000'000) {
      usleep(1000);
      must(cuda.cuMemGetInfo_v2(&now, &all), "cuMemGetInfo");
    }
    check(now >= before, "freed memory goes back to the GPU");
    back_ms.push_back(static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
  }
  std::sort(back_ms.begin(), back_ms.end());
  check(back_ms.back() < 100, format("freed memory is back within 0.1 s: %.0f ms", back_ms.back()));
  std::printf("\n2 GiB that were bound and freed are back after %.0f to %.0f ms\n", back_ms.front(), back_ms.back());
  file.add_row({{"kind", "freed"}, {"back_ms_min", back_ms.front()}, {"back_ms_max", back_ms.back()}});
}

// cuCtxSynchronize and cuMemFree beside a thread that copies: by the planner, and by nobody.
void bench::time_free() {
  const auto measured = [&](bool with_copies) {
    std::atomic<bool> is_over{false};
    std::thread worker([&] {
      while (with_copies && !is_over) (void)planner->copy({direction::to_host, copy::address_of(host), device, 65536});
    });
    std::vector<double> times_ns;
    for (int round = 0; round < 300; ++round) {
      cu::device_ptr memory = 0;
      must(cuda.cuMemAlloc_v2(&memory, 4u << 20), "cuMemAlloc");
      times_ns.push_back(time_once_ns([&] {
        cuda.cuCtxSynchronize();
        cuda.cuMemFree_v2(memory);
      }));
    }
    is_over = true;
    worker.join();
    return latency_fields(times_ns);
  };
  auto idle = measured(false), beside = measured(true);
  std::printf("cuCtxSynchronize and cuMemFree: %.2f us p50 alone, %.2f beside copies of 64 KiB\n",
              idle["latency_ns_p50"].get<double>() / 1e3, beside["latency_ns_p50"].get<double>() / 1e3);
  idle["kind"] = "free_alone";
  beside["kind"] = "free_beside_copies";
  file.add_row(idle);
  file.add_row(beside);
}

// Rounds of: the stream writes the memory, a copy waits for the stream, the stream waits for the copy. One by one and 100
// queued at once, every byte looked at.
void bench::time_stream_order() {
  std::printf("\nstream, copy to the host, stream: us a round, p50\n%12s %16s %16s %16s %16s\n", "", "channel", "CUDA",
              "channel, queued", "CUDA, queued");
  constexpr int kQueued = 100;
  for (const std::size_t size : {4096u, 65536u, 1u << 20}) {
    std::printf("%12zu", size);
    for (const int queued : {1, kQueued})
      for (const bool is_by_channel : {true, false}) {
        copy::planner& used = is_by_channel ? *planner : *by_cuda;
        const std::uint64_t before = by_channel();
        std::vector<double> times_ns;
        std::size_t wrong = 0;
        const int samples = queued == 1 ? 400 : 20;
        for (int sample = 0; sample < samples; ++sample) {
          std::memset(host, 0, size * static_cast<std::size_t>(queued));
          std::vector<copy::completion> ends;
          const double ns = time_once_ns([&] {
            for (int round = 0; round < queued; ++round) {
              const auto value = static_cast<unsigned char>(sample + round + 1);
              must(cuda.cuMemsetD8Async(device, value, size, stream), "cuMemsetD8Async");
              const transfer one{direction::to_host, copy::address_of(host) + static_cast<std::size_t>(round) * size, device,
                                 size};
              auto begun = used.begin(std::span(&one, 1), {true, stream});
              need(begun ? status() : status(begun.error()), "a copy behind a stream");
              need(begun->make_wait(stream), "a stream behind a copy");
              ends.push_back(*std::move(begun));
            }
            must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
          });
          times_ns.push_back(ns / queued);
          for (auto& one : ends) need(one.wait(), "a copy behind a stream");
          for (std::size_t i = 0; i < size * static_cast<std::size_t>(queued); ++i)
            wrong +=
                std::to_integer<unsigned>(host[i]) != static_cast<unsigned char>(sample + static_cast<int>(i / size) + 1);
        }
        check(wrong == 0, format("copies of %zu B in stream order: %zu bytes", size, wrong));
        const std::uint64_t taken = by_channel() - before;
        check(is_by_channel ? taken == static_cast<std::uint64_t>(samples * queued) : taken == 0,
              format("copies in stream order: %llu by channel", static_cast<unsigned long long>(taken)));
        auto row = latency_fields(times_ns);
        std::printf(" %16.2f", row["latency_ns_p50"].get<double>() / 1e3);
        row["kind"] = queued == 1 ? "stream_order" : "stream_order_queued";
        row["contender"] = is_by_channel ? "channel" : "cuda";
        row["size_bytes"] = size;
        file.add_row(row);
      }
    std::printf("\n");
  }
}

// Pageable memory: the ring of a channel beside that of CUDA's copies and beside cuMemcpy, in turns, every word looked at.
void bench::time_rings() {
  constexpr std::size_t kMaxPageable = 64u << 20;
  void* const memory =
      mmap(nullptr, kMaxPageable, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) need(failure{ENOMEM, "mmap"}, "pageable memory");
  auto* const words = static_cast<std::uint32_t*>(memory);
  std::vector<copy::choice> ways;
  for (const auto kind : {copy::method::dma_ring, copy::method::bounce})
    for (const unsigned width : {1u, 2u, 4u, 8u})
      if (width <= planner->threads()) ways.push_back({kind, static_cast<std::uint8_t>(width)});
  std::printf("\npageable memory, GB/s by p50%28s %10s\n", "to host", "to device");
  for (const std::size_t size : {std::size_t{1} << 20, std::size_t{4} << 20, std::size_t{16} << 20, kMaxPageable})
    for (std::size_t way = 0; way <= ways.size(); ++way) {  // the last: cuMemcpy
      const bool is_cuda = way == ways.size();
      const std::string name = is_cuda ? "cuMemcpy" : copy::to_text(ways[way]);
      std::vector<double> times_ns[2];
      for (std::uint32_t round = 0; round < 12; ++round) {
        for (std::size_t i = 0; i < size / 4; ++i) words[i] = static_cast<std::uint32_t>(i) * 2654435761u + round;
        times_ns[1].push_back(time_once_ns([&] {
          if (is_cuda) must(cuda.cuMemcpyHtoD_v2(device, memory, size), "cuMemcpyHtoD");
          else need(planner->copy_by(ways[way], {direction::to_device, device, copy::address_of(memory), size}), "ring");
        }));
        std::memset(memory, 0, size);
        times_ns[0].push_back(time_once_ns([&] {
          if (is_cuda) must(cuda.cuMemcpyDtoH_v2(memory, device, size), "cuMemcpyDtoH");
          else need(planner->copy_by(ways[way], {direction::to_host, copy::address_of(memory), device, size}), "ring");
        }));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < size / 4; ++i) wrong += words[i] != static_cast<std::uint32_t>(i) * 2654435761u + round;
        check(wrong == 0, format("%s of %zu B: %zu words in round %u", name.c_str(), size, wrong, round));
      }
      std::printf("%8zu MiB %-24s", size >> 20, name.c_str());
      for (int i = 0; i < 2; ++i) {
        auto row = latency_fields(times_ns[i]);
        const double gb_per_s = static_cast<double>(size) / row["latency_ns_p50"].get<double>();
        std::printf(" %10.2f", gb_per_s);
        row["kind"] = "pageable";
        row["way"] = i == 0 ? "to_host" : "to_device";
        row["contender"] = name;
        row["size_bytes"] = size;
        row["gb_per_s"] = gb_per_s;
        file.add_row(row);
      }
      std::printf("\n");
    }
  munmap(memory, kMaxPageable);
}

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  const char *costs_file = nullptr, *path = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    else if (std::strcmp(argv[i], "--calibrate") == 0 && i + 1 < argc) costs_file = argv[++i];
    else path = argv[i];
  }
  auto cuda = cu::driver();
  if (!cuda) {
    std::printf("FAILED: %s\n", cuda.error().message.c_str());
    return 1;
  }
  ::bench run(**cuda, "dma_planner_bench");
  run.set_up();
  if (costs_file != nullptr) run.calibrate(costs_file);
  using part_routine = void (::bench::*)();
  const std::pair<const char*, part_routine> kParts[] = {
      {"kinds", &::bench::check_kinds},       {"copies", &::bench::time_copies}, {"fills", &::bench::time_fills},
      {"lists", &::bench::time_lists},        {"freed", &::bench::check_freed},  {"free", &::bench::time_free},
      {"order", &::bench::time_stream_order}, {"rings", &::bench::time_rings},   {"choices", &::bench::time_choices}};
  for (const auto& [name, part] : kParts)
    if (only.empty() || only == name) (run.*part)();
  run.file.set_pass(failures == 0);
  if (path != nullptr) need(run.file.write(path), "result file");
  std::printf("%s\n", failures == 0 ? "all right" : "SOMETHING IS WRONG");
  run.planner.reset();
  run.by_cuda.reset();
  return failures == 0 ? 0 : 1;
}
