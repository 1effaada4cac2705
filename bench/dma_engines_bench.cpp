// SPDX-License-Identifier: Apache-2.0
// What copy engines do with scattered blocks, the CPU left out: one channel and several, on one engine and on several, by
// the order of the blocks, by how dense they lie, by the memory of the commands. Commands are written before the clock
// starts.
//
//     dma_engines_bench [--short] [--host ordinary|pinned|physical] [FILE.json]
#include "bench/block_channels.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

struct engines_bench : block_channels {
  explicit engines_bench(const cu::driver_table& table) : block_channels(table, "dma_engines_bench") {}
  void measure(bool to_host, std::uint32_t size, std::size_t count, const std::string& order, const char* name,
               std::span<const unsigned> chosen, bool is_dealt, place home, const std::vector<dma::block>& blocks);
  void time_stores();
  void check_bytes();
  void compare_all();
  void compare_orders(const std::string& kind);
};

void engines_bench::measure(bool to_host, std::uint32_t size, std::size_t count, const std::string& order, const char* name,
                            std::span<const unsigned> chosen, bool is_dealt, place home,
                            const std::vector<dma::block>& blocks) {
  std::vector<std::vector<dma::block>> parts(chosen.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    parts[is_dealt ? i / 16 % parts.size() : i * parts.size() / blocks.size()].push_back(blocks[i]);
  std::vector<double> times_ns;
  const int rounds = static_cast<int>(std::clamp<std::uint64_t>((std::uint64_t{256} << 20) / (size * count), 3, 31));
  for (int i = 0; i <= rounds; ++i) {
    const double taken = run_ns(parts, chosen, home);
    if (i != 0) times_ns.push_back(taken);
  }
  auto row = latency_fields(times_ns);
  const double gb_per_s = static_cast<double>(size) * static_cast<double>(count) / row["latency_ns_p50"].get<double>();
  row["kind"] = "list";
  row["direction"] = to_host ? "to_host" : "to_device";
  row["block_bytes"] = size;
  row["count"] = count;
  row["order"] = order;
  row["channels"] = name;
  row["dealt"] = is_dealt;
  row["commands"] = home == place::device ? "device" : "host";
  row["bandwidth_gb_per_s"] = gb_per_s;
  file.add_row(std::move(row));
  std::printf(" %s%s%s %.1f", name, is_dealt ? "/dealt" : "", home == place::host ? "/host" : "", gb_per_s);
}

// What the CPU's stores of commands through BAR1 cost, by instruction.
void engines_bench::time_stores() {
  std::vector<std::byte> commands(kCommandBytes);
  for (const auto& ops : arch::supported_copy_ops())
    for (const std::size_t bytes : {std::size_t{1536}, std::size_t{24576}, std::size_t{1} << 20}) {
      std::vector<double> times_ns;
      for (int i = 0; i < 100; ++i) {
        times_ns.push_back(time_once_ns([&] {
          ops.write(queues[0].view[0], commands.data(), bytes);
          arch::publish_to_device(arch::mapping_type::wc);
        }));
      }
      auto row = latency_fields(times_ns);
      const double ns = row["latency_ns_p50"].get<double>() * 24 / static_cast<double>(bytes);
      row["kind"] = "stores";
      row["isa"] = ops.name;
      row["size_bytes"] = bytes;
      row["ns_per_block"] = ns;
      file.add_row(std::move(row));
      std::printf("stores %-10s %8zu bytes: %.2f ns for the 24 bytes of a block\n", ops.name, bytes, ns);
    }
}

// Every variant moves what it should: the variants only differ in how they are told.
void engines_bench::check_bytes() {
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i < (8u << 20); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(host + i, &value, 8);
  }
  const std::vector<std::byte> before(host, host + (8u << 20));
  const auto out = make_blocks(false, 4096, 1024, "random");
  std::vector<unsigned> all;
  for (unsigned i = 0; i < queues.size(); ++i) all.push_back(i);
  for (const place home : {place::device, place::host}) {
    must(cuda.cuMemsetD8_v2(device, 0, 8u << 20), "cuMemsetD8");
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
    std::vector<std::vector<dma::block>> parts(all.size());
    for (std::size_t i = 0; i < out.size(); ++i) parts[i % parts.size()].push_back(out[i]);
    (void)run_ns(parts, all, home);
    std::vector<std::byte> seen(8u << 20);
    must(cuda.cuMemcpyDtoH_v2(seen.data(), device, seen.size()), "cuMemcpyDtoH");
    for (const auto& one : out)
      if (std::memcmp(seen.data() + (one.destination - device_address), before.data() + (one.source - host_address), 4096) !=
          0) {
        std::printf("WRONG bytes\n");
        std::exit(1);
      }
  }
}

void engines_bench::compare_all() {
  time_stores();
  const auto last = static_cast<unsigned>(queues.size() - 1);
  const std::vector<unsigned> one{0}, twice{0, last}, two{0, 1}, three{0, 1, 2}, shared{last - 1};
  std::vector<unsigned> all;
  for (unsigned i = 0; i < last; ++i) all.push_back(i);
  for (const bool to_host : {false, true})
    for (const std::uint32_t size : {512u, 1024u, 2048u, 4096u, 8192u, 16384u, 65536u})
      for (const std::size_t count : {std::size_t{64}, std::size_t{1024}, std::size_t{16384}, std::size_t{100000}}) {
        if (size * count > (std::uint64_t{1} << 30) || (count == 64 && size > 4096)) continue;
        for (const char* order : {"random", "random by host", "random by device", "sparse", "sparse by host", "linear"}) {
          std::printf("%s %6zu x %5u %-17s:", to_host ? "D2H" : "H2D", count, size, order);
          const std::string name = order;
          const auto blocks = make_blocks(to_host, size, count, name);
          measure(to_host, size, count, name, "one", one, false, place::device, blocks);
          if (name == "random" || name.starts_with("sparse")) {
            measure(to_host, size, count, name, "one", one, false, place::host, blocks);
            measure(to_host, size, count, name, "twice", twice, false, place::device, blocks);
            measure(to_host, size, count, name, "shared", shared, false, place::device, blocks);
          }
          if (all.size() >= 3 && !name.ends_with("device")) {
            measure(to_host, size, count, name, "two", two, false, place::device, blocks);
            measure(to_host, size, count, name, "two", two, true, place::device, blocks);
            measure(to_host, size, count, name, "three", three, false, place::device, blocks);
            if (name == "random" || name == "sparse")
              measure(to_host, size, count, name, "all", all, false, place::device, blocks);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
      }
}

// Sorted by the host's addresses: wholly, in parts of so many blocks, and by regions only.
void engines_bench::compare_orders(const std::string& kind) {
  const std::vector<unsigned> one{0}, second{1}, third{2}, two{0, 1}, last_two{1, 2};
  for (const bool to_host : {false, true})
    for (const std::uint32_t size : {4096u, 8192u, 16384u, 32768u})
      for (const std::size_t count : {std::size_t{1024}, std::size_t{16384}, std::size_t{100000}}) {
        if (size * count > (std::uint64_t{1} << 30) || (to_host && size != 4096)) continue;
        for (const char* order : {"random", "random by host", "random by 4096", "random by 64K", "random by 2M", "sparse",
                                  "sparse by host", "sparse by 1024", "sparse by 64K", "sparse by 2M"}) {
          const std::string name = order;
          if (kind != "ordinary" && name != "random" && name != "sparse" && name != "sparse by host") continue;
          std::printf("%s %s %6zu x %5u %-17s:", kind.c_str(), to_host ? "D2H" : "H2D", count, size, order);
          const auto blocks = make_blocks(to_host, size, count, name);
          measure(to_host, size, count, name, "one", one, false, place::device, blocks);
          measure(to_host, size, count, name, "two", two, true, place::device, blocks);
          if (queues.size() > 3 && (name == "random" || name.starts_with("sparse"))) {
            measure(to_host, size, count, name, "second", second, false, place::device, blocks);
            measure(to_host, size, count, name, "third", third, false, place::device, blocks);
            measure(to_host, size, count, name, "last two", last_two, true, place::device, blocks);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
      }
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = need(cu::driver(), "libcuda");
  engines_bench run(*cuda);
  std::string kind = "ordinary", path;
  bool is_short = false;  // what decides about sorting, in some ten seconds
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--short") is_short = true;
    else if (word == "--host" && i + 1 < argc) kind = argv[++i];
    else path = word;
  }
  run.set_up(kind == "physical" ? host_kind::physical : kind == "pinned" ? host_kind::pinned : host_kind::ordinary);
  run.open_channels();
  if (kind != "physical") run.check_bytes();  // which is bound without a look at the CPU's caches
  if (is_short) run.compare_orders(kind);
  else run.compare_all();
  if (!path.empty()) {
    run.file.set_pass(true);
    need(run.file.write(path), "writing the results");
  }
  return 0;
}
