// SPDX-License-Identifier: Apache-2.0
// What a short list waits for while a long one is under way on another engine: bytes, translations, or the flush at its end.
// The CPU's part is left out: the long list is one entry, commands are written before the clock starts.
//
// With --check: whether bytes are there when the word is, by the way in which the list ends.
//
//     dma_urgent_bench [--check] [FILE.json]
#include "bench/block_channels.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

struct load {
  const char* name;
  std::uint32_t block_bytes;
  std::size_t count;
  const char* order;
};
// Of 256 to 512 MiB, for some 10 ms.
constexpr load kLoads[] = {{"idle", 0, 0, ""},
                           {"4 KiB sparse", 4096, 65536, "sparse"},
                           {"16 KiB random", 16384, 32768, "random"},
                           {"16 KiB sorted", 16384, 32768, "random by host"},
                           {"1 MiB linear", 1u << 20, 512, "linear"}};

struct short_list {
  const char* name;
  std::uint32_t block_bytes;
  std::size_t count;
};
constexpr short_list kShort[] = {{"1 x 64", 64, 1}, {"16 x 4 KiB", 4096, 16}, {"64 x 16 KiB", 16384, 64}};

struct ending {
  const char* name;
  std::uint32_t flags;
};
constexpr ending kEndings[] = {{"flush", kFlushed}, {"settled", kSettled}, {"none", kUnordered}};

struct urgent_bench : block_channels {
  explicit urgent_bench(const cu::driver_table& table) : block_channels(table, "dma_urgent_bench") {}

  // Blocks at the end of the memory, which no load uses, apart from each other by `apart` bytes.
  std::vector<dma::block> make_short(bool to_host, const short_list& shape) const {
    std::vector<dma::block> blocks;
    const std::uint64_t apart = std::max<std::uint64_t>(shape.block_bytes, 64u << 10);
    for (std::size_t i = 0; i < shape.count; ++i) {
      const std::uint64_t offset = kMemoryBytes - (shape.count - i) * apart;
      const std::uint64_t on_host = host_address + offset, on_device = device_address + offset;
      blocks.push_back(to_host ? dma::block{on_host, on_device, shape.block_bytes}
                               : dma::block{on_device, on_host, shape.block_bytes});
    }
    return blocks;
  }

  // p50 in us of short lists on `engine` beside the load on queue 2, which begins anew until there are samples enough.
  void measure(const load& heavy, bool heavy_to_host, const short_list& shape, bool to_host, unsigned engine,
               const ending& end) {
    constexpr std::size_t kSamples = 60;
    test_channel &many = queues[2], &few = queues[engine];
    const auto blocks = make_short(to_host, shape);
    std::vector<dma::block> heavy_blocks;
    if (heavy.count != 0) heavy_blocks = make_blocks(heavy_to_host, heavy.block_bytes, heavy.count, heavy.order);
    std::vector<double> samples_ns;
    for (int rounds = 0; rounds < 20 && samples_ns.size() < kSamples; ++rounds) {
      ++round;
      const std::uint32_t heavy_round = round;
      if (heavy.count != 0) {
        const std::uint64_t entry = write_list(many, heavy_blocks, place::device, kFlushed);
        usleep(20);
        many.queue->queue_entries({&entry, 1});
        const std::uint64_t begin_ns = monotonic_ns();
        while (monotonic_ns() - begin_ns < 200'000) {}
      }
      for (int i = 0; i < 30; ++i) {
        ++round;
        const std::uint64_t entry = write_list(few, blocks, place::device, end.flags);
        const std::uint64_t begin_ns = monotonic_ns();
        while (monotonic_ns() - begin_ns < 2'000) {}
        const std::uint64_t from_ns = monotonic_ns();
        few.queue->queue_entries({&entry, 1});
        wait_for(few, round, from_ns);
        const double taken_ns = static_cast<double>(monotonic_ns() - from_ns);
        if (heavy.count != 0 && *many.word == heavy_round) break;
        samples_ns.push_back(taken_ns);
      }
      if (heavy.count != 0) wait_for(many, heavy_round, monotonic_ns());
    }
    auto row = latency_fields(samples_ns);
    std::printf(" %s/COPY%u %.1f", end.name, few.engine, samples_ns.empty() ? 0 : row["latency_ns_p50"].get<double>() / 1e3);
    row["kind"] = "urgent";
    row["load"] = heavy.name;
    row["load_direction"] = heavy_to_host ? "to_host" : "to_device";
    row["list"] = shape.name;
    row["direction"] = to_host ? "to_host" : "to_device";
    row["engine"] = few.engine;
    row["load_engine"] = many.engine;
    row["end"] = end.name;
    file.add_row(std::move(row));
  }
};

// Lists from two sources in turns into one place: which bytes are there when the CPU sees the word?
struct checker {
  urgent_bench& run;
  volatile std::uint32_t* on_device;  // the places of the short list, by BAR1

  static constexpr short_list kShape{"16 x 4 KiB", 4096, 16};
  static constexpr std::uint64_t kApart = 64u << 10, kPlace = kMemoryBytes - 16 * kApart;
  static constexpr std::uint64_t kSources[] = {kPlace - 16 * kApart, kPlace - 32 * kApart};
  static std::uint32_t pattern(unsigned source) { return source == 0 ? 0x5a5a5a5a : 0xc3c3c3c3; }

  void fill() {
    for (unsigned source = 0; source < 2; ++source) {
      run.must(run.cuda.cuMemsetD32_v2(run.device + kSources[source], pattern(source), 16 * kApart / 4), "cuMemsetD32");
      std::fill_n(reinterpret_cast<std::uint32_t*>(run.host + kSources[source]), 16 * kApart / 4, pattern(source));
    }
    run.must(run.cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  std::vector<dma::block> list(bool to_host, unsigned source) const {
    std::vector<dma::block> blocks;
    for (std::size_t i = 0; i < kShape.count; ++i) {
      const std::uint64_t place = kPlace + i * kApart, origin = kSources[source] + i * kApart;
      blocks.push_back(to_host ? dma::block{run.host_address + place, run.device_address + origin, kShape.block_bytes}
                               : dma::block{run.device_address + place, run.host_address + origin, kShape.block_bytes});
    }
    return blocks;
  }
  // The last block first: it is the one that a word overtakes.
  bool is_there(bool to_host, unsigned source) const {
    const auto* const words = to_host ? reinterpret_cast<const volatile std::uint32_t*>(run.host + kPlace) : on_device;
    for (std::size_t i = kShape.count; i-- > 0;)
      for (const std::size_t word : {kShape.block_bytes / 4 - 1, kShape.block_bytes / 8, 0u})
        if (words[i * kApart / 4 + word] != pattern(source)) return false;
    return true;
  }

  void check(const load& heavy, bool heavy_to_host, bool to_host, const ending& end) {
    constexpr std::uint64_t kForNs = 400'000'000;
    test_channel &many = run.queues[2], &few = run.queues[to_host ? 0 : 1];
    std::vector<dma::block> heavy_blocks;
    if (heavy.count != 0) heavy_blocks = run.make_blocks(heavy_to_host, heavy.block_bytes, heavy.count, heavy.order);
    const std::vector<dma::block> lists[] = {list(to_host, 0), list(to_host, 1)};
    std::uint64_t made = 0, early = 0;
    for (const std::uint64_t begin_ns = monotonic_ns(); monotonic_ns() - begin_ns < kForNs;) {
      const std::uint32_t heavy_round = ++run.round;
      if (heavy.count != 0) {
        const std::uint64_t entry = run.write_list(many, heavy_blocks, place::device, kFlushed);
        usleep(20);
        many.queue->queue_entries({&entry, 1});
      }
      for (int i = 0; i < 200; ++i) {
        ++run.round;
        const unsigned source = static_cast<unsigned>(++made % 2);
        const std::uint64_t entry = run.write_list(few, lists[source], place::device, end.flags);
        few.queue->queue_entries({&entry, 1});
        run.wait_for(few, run.round, monotonic_ns());
        early += is_there(to_host, source) ? 0 : 1;
        if (heavy.count != 0 && *many.word == heavy_round) break;
      }
      if (heavy.count != 0) run.wait_for(many, heavy_round, monotonic_ns());
    }
    std::printf(" %s %llu of %llu", end.name, static_cast<unsigned long long>(early), static_cast<unsigned long long>(made));
    run.file.add_row({{"kind", "check"},
                      {"load", heavy.name},
                      {"load_direction", heavy_to_host ? "to_host" : "to_device"},
                      {"direction", to_host ? "to_host" : "to_device"},
                      {"end", end.name},
                      {"lists", made},
                      {"early", early}});
  }
};

void check_all(urgent_bench& run) {
  auto& objects = run.space->objects();
  const auto view = need(objects.owner().map(objects.device(), run.regions[0].memory(),
                                             run.regions[0].offset() + checker::kPlace, 16 * checker::kApart, nullptr),
                         "view");
  checker early{run, static_cast<volatile std::uint32_t*>(view.address)};
  early.fill();
  for (const bool to_host : {true, false})
    for (const auto& heavy : {kLoads[0], kLoads[2]})
      for (const bool heavy_to_host : {true, false}) {
        if (heavy.count == 0 && heavy_to_host != to_host) continue;
        std::printf("%s early beside %-14s %s:", to_host ? "D2H" : "H2D", heavy.name,
                    heavy.count == 0 ? "   "
                    : heavy_to_host  ? "D2H"
                                     : "H2D");
        for (const auto& end : kEndings) early.check(heavy, heavy_to_host, to_host, end);
        std::printf("\n");
        std::fflush(stdout);
      }
}

void compare_all(urgent_bench& run) {
  const auto shared = static_cast<unsigned>(run.queues.size() - 2);
  for (const bool to_host : {true, false})
    for (const auto& shape : kShort)
      for (const auto& heavy : kLoads)
        for (const bool heavy_to_host : {true, false}) {
          if (heavy.count == 0 && heavy_to_host != to_host) continue;
          std::printf("%s %-12s beside %-14s %s:", to_host ? "D2H" : "H2D", shape.name, heavy.name,
                      heavy.count == 0 ? "   "
                      : heavy_to_host  ? "D2H"
                                       : "H2D");
          for (const auto& end : kEndings) run.measure(heavy, heavy_to_host, shape, to_host, to_host ? 0 : 1, end);
          run.measure(heavy, heavy_to_host, shape, to_host, shared, kEndings[0]);
          std::printf("\n");
          std::fflush(stdout);
        }
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = need(cu::driver(), "libcuda");
  urgent_bench run(*cuda);
  run.set_up();
  run.open_channels();
  if (run.queues.size() < 4) {
    std::printf("FAILED: fewer than three engines\n");
    return 1;
  }
  std::string path;
  bool checks = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--check") checks = true;
    else path = argv[i];
  }
  if (checks) check_all(run);
  else compare_all(run);
  if (!path.empty()) {
    run.file.set_pass(true);
    need(run.file.write(path), "writing the results");
  }
  return 0;
}
