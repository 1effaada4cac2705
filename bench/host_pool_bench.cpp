// SPDX-License-Identifier: Apache-2.0
// What a program feels of a large host pool that is being pinned (copy/host_pool.hpp): the longest waits of its stores,
// copies, launches and allocations meanwhile, beside those without a pool; and how long the first lists in the pool take.
//
//     host_pool_bench [--gib N] [--piece MIB] [--only none|pool|prepared] [FILE.json]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "copy/completion.hpp"
#include "copy/host_pool.hpp"
#include "copy/pinned_buffer.hpp"
#include "copy/planner.hpp"
#include "cuda/driver_table.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;

constexpr std::uint64_t kBlock = 32u << 10, kBlocks = 2048;

enum class mode { none, pool, prepared };
constexpr const char* kModes[] = {"none", "pool", "prepared"};

struct bench {
  const cu::driver_table& cuda;
  std::unique_ptr<copy::planner> planner;
  copy::pinned_buffer pinned;
  cu::device_ptr device = 0;
  cu::stream_t stream = nullptr;
  std::uint64_t pool_bytes = 0, piece_bytes = 0;
  result_file file{"host_pool_bench", {"host_pool_bench"}};

  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda, code).c_str());
    std::exit(1);
  }
  void set_up();
  void run(mode chosen);
  void first_lists(const copy::host_pool& pool, mode chosen);
  void sparse_lists(const copy::host_pool& pool);
};

void bench::set_up() {
  need(cu::initialize(cuda), "cuInit");
  cu::context_t context = nullptr;
  must(cuda.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuda.cuMemAlloc_v2(&device, 2 * kBlock * kBlocks), "cuMemAlloc");  // 128 MiB: what every list here needs
  must(cuda.cuStreamCreate(&stream, 1), "cuStreamCreate");
  pinned = need(copy::pinned_buffer::make(need(copy::find_context(cuda, 0, nullptr), "context"), 1u << 20), "pinned memory");
  copy::planner::options wanted;
  wanted.use_engine = false;
  planner = need(copy::planner::open(cuda, wanted), "planner");
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda, 0);
  file.set_machine(facts);
}

// What the program does, again and again; each kind's times.
void bench::run(mode chosen) {
  struct act {
    const char* name;
    std::vector<double> ns;
  };
  act acts[] = {{"store", {}}, {"copy 4 KiB", {}}, {"memset and synchronize", {}}, {"allocate and free 2 MiB", {}}};
  std::unique_ptr<copy::host_pool> pool;
  copy::host_pool::options options;
  options.size_bytes = pool_bytes;
  if (piece_bytes != 0) options.piece_bytes = piece_bytes;
  if (chosen == mode::prepared)
    options.pinned = [this](std::byte* data, std::uint64_t size_bytes) {
      (void)planner->prepare_host_memory(data, size_bytes, 0);
    };
  const std::uint64_t begin_ns = monotonic_ns();
  if (chosen != mode::none) pool = need(copy::host_pool::make(cuda, options), "pool");
  const double opened_ms = static_cast<double>(monotonic_ns() - begin_ns) / 1e6;
  std::mt19937_64 random(7);
  const auto is_over = [&] {
    return pool == nullptr ? monotonic_ns() - begin_ns > 3'000'000'000 : pool->wait(0).code() != ETIMEDOUT;
  };
  while (!is_over()) {
    std::byte* const somewhere = pool != nullptr ? pool->data() + random() % pool_bytes : pinned.data();
    acts[0].ns.push_back(time_once_ns([&] { *reinterpret_cast<volatile char*>(somewhere) = 1; }));
    acts[1].ns.push_back(time_once_ns([&] {
      need(planner->copy({copy::direction::to_device, device, copy::address_of(pinned.data()), 4096}), "copy");
    }));
    acts[2].ns.push_back(time_once_ns([&] {
      must(cuda.cuMemsetD8Async(device, 1, 4096, stream), "cuMemsetD8Async");
      must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }));
    acts[3].ns.push_back(time_once_ns([&] {
      cu::device_ptr some = 0;
      must(cuda.cuMemAlloc_v2(&some, 2u << 20), "cuMemAlloc");
      must(cuda.cuMemFree_v2(some), "cuMemFree");
    }));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const double pinned_ms = static_cast<double>(monotonic_ns() - begin_ns) / 1e6;
  if (pool != nullptr) {
    need(pool->wait(0), "pinning");
    std::printf("%s: a pool of %.1f GB is there after %.2f ms, pinned after %.0f ms\n", kModes[static_cast<int>(chosen)],
                static_cast<double>(pool_bytes) / 1e9, opened_ms, pinned_ms);
    file.add_row({{"kind", "pool"},
                  {"mode", kModes[static_cast<int>(chosen)]},
                  {"size_bytes", pool_bytes},
                  {"opened_ms", opened_ms},
                  {"pinned_ms", pinned_ms}});
  }
  for (const auto& one : acts) {
    auto row = latency_fields(one.ns);
    row["kind"] = "act";
    row["mode"] = kModes[static_cast<int>(chosen)];
    row["act"] = one.name;
    const summary sum = summarize(one.ns);
    std::printf("  %-24s p50 %8.2f us  p99 %9.2f us  max %9.2f us  (%zu)\n", one.name, sum.p50 / 1e3, sum.p99 / 1e3,
                sum.max / 1e3, one.ns.size());
    file.add_row(std::move(row));
  }
  if (pool == nullptr) return;
  first_lists(*pool, chosen);
  if (chosen == mode::prepared) sparse_lists(*pool);
}

// Small blocks at random places of up to 16 GiB of the pool, both ways.
void bench::sparse_lists(const copy::host_pool& pool) {
  std::mt19937_64 random(5);
  for (const bool to_host : {true, false})
    for (const std::uint64_t block : {std::uint64_t{4096}, std::uint64_t{8192}, std::uint64_t{16384}})
      for (const std::size_t count : {std::size_t{1024}, std::size_t{8192}}) {
        const std::uint64_t slots = std::min(pool_bytes, std::uint64_t{16} << 30) / block;
        std::vector<std::int64_t> host(slots), on_device(count);
        std::iota(host.begin(), host.end(), 0);
        std::shuffle(host.begin(), host.end(), random);
        std::iota(on_device.begin(), on_device.end(), 0);
        std::shuffle(on_device.begin(), on_device.end(), random);
        const std::uint64_t host_begin = copy::address_of(pool.data()), device_begin = device;
        const copy::paged_memory pages{{&host_begin, 1}, slots * block, block, copy::block_indices(host.data())};
        const copy::paged_memory blocks{{&device_begin, 1}, count * block, block, copy::block_indices(on_device.data())};
        const auto move = [&] {
          need(planner->copy_blocks(to_host ? copy::block_transfer{copy::direction::to_host, pages, blocks, block, count}
                                            : copy::block_transfer{copy::direction::to_device, blocks, pages, block, count}),
               "list");
        };
        move();
        std::vector<double> times_ns;
        for (int i = 0; i < 15; ++i) times_ns.push_back(time_once_ns(move));
        auto row = latency_fields(times_ns);
        const double gb_per_s = static_cast<double>(block * count) / row["latency_ns_p50"].get<double>();
        std::printf("  sparse %s %5zu x %5llu: %.1f GB/s\n", to_host ? "D2H" : "H2D", count,
                    static_cast<unsigned long long>(block), gb_per_s);
        row["kind"] = "sparse";
        row["direction"] = to_host ? "to_host" : "to_device";
        row["block_bytes"] = block;
        row["count"] = count;
        row["bandwidth_gb_per_s"] = gb_per_s;
        file.add_row(std::move(row));
      }
}

// 64 MiB in pages at random places of the whole pool, which no list has used before.
void bench::first_lists(const copy::host_pool& pool, mode chosen) {
  std::mt19937_64 random(3);
  const std::uint64_t slots = pool_bytes / kBlock;
  std::vector<std::int64_t> host(slots), on_device(kBlocks);
  std::iota(host.begin(), host.end(), 0);
  std::shuffle(host.begin(), host.end(), random);
  std::iota(on_device.begin(), on_device.end(), 0);
  const std::uint64_t host_begin = copy::address_of(pool.data()), device_begin = device;
  for (int list = 0; list < 4; ++list) {
    const double ns = time_once_ns([&] {
      need(planner->copy_blocks(
               {copy::direction::to_host,
                {{&host_begin, 1}, slots * kBlock, kBlock, copy::block_indices(host.data() + list * kBlocks)},
                {{&device_begin, 1}, kBlocks * kBlock, kBlock, copy::block_indices(on_device.data())},
                kBlock,
                kBlocks}),
           "list");
    });
    const double gb_per_s = static_cast<double>(kBlock * kBlocks) / ns;
    std::printf("  list %d of 2048 x 32 KiB: %.2f ms, %.1f GB/s\n", list + 1, ns / 1e6, gb_per_s);
    file.add_row({{"kind", "list"},
                  {"mode", kModes[static_cast<int>(chosen)]},
                  {"list", list + 1},
                  {"taken_ms", ns / 1e6},
                  {"bandwidth_gb_per_s", gb_per_s}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = need(cu::driver(), "libcuda");
  bench run{*cuda, nullptr, {}, 0, nullptr, std::uint64_t{16} << 30, 0};
  std::string path, only;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--gib" && i + 1 < argc) run.pool_bytes = std::strtoull(argv[++i], nullptr, 10) << 30;
    else if (word == "--piece" && i + 1 < argc) run.piece_bytes = std::strtoull(argv[++i], nullptr, 10) << 20;
    else if (word == "--only" && i + 1 < argc) only = argv[++i];
    else path = word;
  }
  run.set_up();
  for (const mode one : {mode::none, mode::pool, mode::prepared})
    if (only.empty() || only == kModes[static_cast<int>(one)]) run.run(one);
  if (!path.empty()) {
    run.file.set_pass(true);
    need(run.file.write(path), "writing the results");
  }
  return 0;
}
