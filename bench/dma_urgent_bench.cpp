// SPDX-License-Identifier: Apache-2.0
// What a short list waits for while a long one is under way on another engine: bytes, translations, or the flush at its end.
// The CPU's part is left out: the long list is one entry, commands are written before the clock starts.
//
//     dma_urgent_bench [FILE.json]
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
  if (argc > 1) {
    run.file.set_pass(true);
    need(run.file.write(argv[1]), "writing the results");
  }
  return 0;
}
