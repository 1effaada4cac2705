// SPDX-License-Identifier: Apache-2.0
// What copy engines do with scattered blocks, the CPU left out: one channel and several, on one engine and on several, by
// the order of the blocks, by how dense they lie, by the memory of the commands. Commands are written before the clock
// starts.
//
//     dma_engines_bench [FILE.json]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "cuda/driver_table.hpp"
#include "dma/channel.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "measure/samples.hpp"
#include "os/device_io.hpp"
#include "rm/export_listener.hpp"

namespace {

using namespace pl;

constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
constexpr std::size_t kCommandBytes = std::size_t{4} << 20;  // for each channel
constexpr std::uint64_t kTimeoutNs = 2'000'000'000;

template <class T>
T need(result<T> outcome, const char* step) {
  if (outcome) return std::move(*outcome);
  std::printf("FAILED: %s: %s\n", step, outcome.error().message.c_str());
  std::exit(1);
}
void need(status outcome, const char* step) {
  if (outcome) return;
  std::printf("FAILED: %s: %s\n", step, outcome.error().message.c_str());
  std::exit(1);
}

enum class place { device, host };  // of the commands

struct test_channel {
  std::unique_ptr<dma::channel> queue;
  unsigned engine = 0;
  std::uint64_t commands[2] = {};  // their addresses for the channel, by place
  std::byte* view[2] = {};         // the same for the CPU
  volatile std::uint32_t* word = nullptr;
  std::uint64_t word_address = 0;
};

struct bench {
  explicit bench(const cu::driver_table& table) : cuda(table) {}

  const cu::driver_table& cuda;
  cu::device_ptr device = 0;
  std::byte *host = nullptr, *words = nullptr;
  std::unique_ptr<rm::client> client;
  std::shared_ptr<dma::address_space> space;
  std::vector<dma::region> regions;
  dma::address_space::own_memory own;
  std::vector<test_channel> queues;
  std::uint64_t device_address = 0, host_address = 0;
  std::uint32_t round = 0;
  result_file file{"dma_engines_bench", {"dma_engines_bench"}};

  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda, code).c_str());
    std::exit(1);
  }
  void set_up();
  void open_channels();
  std::vector<dma::block> make_blocks(bool to_host, std::uint32_t size, std::size_t count, const std::string& order) const;
  double run_ns(const std::vector<std::vector<dma::block>>& parts, std::span<const unsigned> chosen, place home);
  void measure(bool to_host, std::uint32_t size, std::size_t count, const std::string& order, const char* name,
               std::span<const unsigned> chosen, bool is_dealt, place home, const std::vector<dma::block>& blocks);
  void time_stores();
  void check_bytes();
};

void bench::set_up() {
  need(cu::initialize(cuda), "cuInit");
  cu::device_t ordinal = 0;
  cu::context_t context = nullptr;
  must(cuda.cuDeviceGet(&ordinal, 0), "cuDeviceGet");
  must(cuda.cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
  must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuda.cuMemAlloc_v2(&device, kMemoryBytes), "cuMemAlloc");
  host = static_cast<std::byte*>(mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  madvise(host, kMemoryBytes, MADV_HUGEPAGE);
  std::memset(host, 0, kMemoryBytes);
  char text[32] = {};
  must(cuda.cuDeviceGetPCIBusId(text, sizeof text, ordinal), "cuDeviceGetPCIBusId");
  device_io& io = real_device_io();
  client = need(rm::client::open(io), "resource manager");
  const rm::gpu* gpu = need(client->find_gpu(need(rm::parse_pci_address(text), "PCI address")), "GPU");
  space = need(dma::address_space::open(*client, *gpu, need(rm::driver_version(io), "driver version")), "address space");
  const auto pieces = need(rm::find_backing(cuda, device, kMemoryBytes), "what lies behind CUDA's memory");
  regions.push_back(
      need(space->bind_object(pieces[0].client, pieces[0].object, pieces[0].offset, kMemoryBytes), "binding GPU memory"));
  const std::uint64_t begin_ns = monotonic_ns();
  regions.push_back(need(space->bind_host(host, kMemoryBytes), "binding host memory"));
  std::printf("binding 2 GiB of host memory: %.1f ms\n", static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
  device_address = regions[0].address();
  host_address = regions[1].address();
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda, 0);
  facts.backend = "rm";
  file.set_machine(facts);
}

void bench::open_channels() {
  std::vector<unsigned> engines = dma::copy_engines(space->objects());
  for (const unsigned engine : engines) {
    const auto caps = need(space->objects().copy_engine_capabilities(engine), "capabilities");
    std::printf("COPY%u: capabilities 0x%02x\n", engine, caps);
    file.add_row({{"kind", "engine"}, {"engine", engine}, {"capabilities", caps}});
  }
  engines.push_back(engines[0]);  // a second channel of the first engine
  const std::size_t host_bytes = engines.size() * kCommandBytes + 4096;
  words = static_cast<std::byte*>(
      mmap(nullptr, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  regions.push_back(need(space->bind_host(words, host_bytes), "binding commands"));
  const std::uint64_t words_address = regions.back().address();
  own = need(space->make_device_memory(engines.size() * kCommandBytes), "GPU memory for commands");
  auto view = need(client->map(space->objects().device(), own.memory, 0, engines.size() * kCommandBytes, nullptr), "view");
  for (std::size_t i = 0; i < engines.size(); ++i) {
    test_channel one;
    one.engine = engines[i];
    one.queue = need(dma::channel::open(space, {engines[i], dma::ordering::none, 1024}), "channel");
    one.commands[0] = own.bound.address() + i * kCommandBytes;
    one.view[0] = static_cast<std::byte*>(view.address) + i * kCommandBytes;
    one.commands[1] = words_address + 4096 + i * kCommandBytes;
    one.view[1] = words + 4096 + i * kCommandBytes;
    one.word = reinterpret_cast<volatile std::uint32_t*>(words + i * 64);
    one.word_address = words_address + i * 64;
    queues.push_back(std::move(one));
  }
}

// `order`: "random" on both sides in a region a quarter larger than the list; "by host" and "by device": sorted by one;
// "sparse": random in 2 GiB; "linear": as they lie.
std::vector<dma::block> bench::make_blocks(bool to_host, std::uint32_t size, std::size_t count,
                                           const std::string& order) const {
  std::mt19937_64 random(size + count);
  const bool is_sparse = order.starts_with("sparse");
  const std::size_t slots = is_sparse ? kMemoryBytes / size : std::min(count + count / 4, kMemoryBytes / size);
  std::vector<std::uint32_t> on_host(count), on_device(count);
  if (is_sparse) {  // no list of all slots: their number is a power of two, which an odd factor permutes
    const auto scatter = [&](std::size_t i, std::uint64_t factor) {
      const std::uint64_t first = i * factor % slots;
      return static_cast<std::uint32_t>((first ^ first >> std::bit_width(slots) / 2) * (factor + 2) % slots);
    };
    for (std::size_t i = 0; i < count; ++i) {
      on_host[i] = scatter(i, 0x9e3779b1);
      on_device[i] = scatter(i, 0x85ebca6b);
    }
  } else {
    on_host.resize(slots), on_device.resize(slots);
    std::iota(on_host.begin(), on_host.end(), 0);
    std::iota(on_device.begin(), on_device.end(), 0);
    if (order != "linear") {
      std::shuffle(on_host.begin(), on_host.end(), random);
      std::shuffle(on_device.begin(), on_device.end(), random);
    }
  }
  std::vector<dma::block> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t host_block = host_address + std::uint64_t{on_host[i]} * size;
    const std::uint64_t device_block = device_address + std::uint64_t{on_device[i]} * size;
    blocks.push_back(to_host ? dma::block{host_block, device_block, size} : dma::block{device_block, host_block, size});
  }
  const auto host_of = [&](const dma::block& one) { return to_host ? one.destination : one.source; };
  const auto device_of = [&](const dma::block& one) { return to_host ? one.source : one.destination; };
  if (order.ends_with("by host"))
    std::sort(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) { return host_of(a) < host_of(b); });
  if (order.ends_with("by device"))
    std::sort(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) { return device_of(a) < device_of(b); });
  return blocks;
}

// From the first doorbell until the CPU sees the last word.
double bench::run_ns(const std::vector<std::vector<dma::block>>& parts, std::span<const unsigned> chosen, place home) {
  const auto index = static_cast<std::size_t>(home);
  std::vector<std::uint64_t> entries;
  ++round;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    test_channel& one = queues[chosen[i]];
    std::vector<std::uint32_t> room(parts[i].size() * 7 + 64);
    dma::command_writer commands(room);
    commands.completion(one.word_address, round);
    for (std::size_t k = 0; k < parts[i].size(); ++k) {
      const dma::block& block = parts[i][k];
      const bool is_last = k + 1 == parts[i].size();
      const std::uint32_t flags = dma::launch::kPipelined | (is_last ? dma::launch::kReleaseWord | dma::launch::kFlush : 0);
      if (k == 0) commands.copy(block.destination, block.source, block.size_bytes, flags);
      else commands.copy_again(block.destination, block.source, flags);
    }
    if (home == place::device) arch::copy_to(arch::mapping_type::wc, one.view[0], room.data(), commands.words() * 4);
    else std::memcpy(one.view[1], room.data(), commands.words() * 4);
    entries.push_back(dma::ring_entry(one.commands[index], static_cast<std::uint32_t>(commands.words())));
  }
  usleep(20);  // what was written to the device is there
  const std::uint64_t begin_ns = monotonic_ns();
  for (std::size_t i = 0; i < parts.size(); ++i) queues[chosen[i]].queue->queue_entries({&entries[i], 1});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    test_channel& one = queues[chosen[i]];
    for (std::uint64_t polls = 0; *one.word != round; ++polls)
      if (polls % 4096 == 4095 && monotonic_ns() - begin_ns > kTimeoutNs) {
        const auto reason = one.queue->fault();
        std::printf("FAILED: COPY%u does not end: %s\n", one.engine, reason ? reason->message.c_str() : "no reason");
        std::exit(1);
      }
  }
  return static_cast<double>(monotonic_ns() - begin_ns);
}

void bench::measure(bool to_host, std::uint32_t size, std::size_t count, const std::string& order, const char* name,
                    std::span<const unsigned> chosen, bool is_dealt, place home, const std::vector<dma::block>& blocks) {
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
void bench::time_stores() {
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
void bench::check_bytes() {
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

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = need(cu::driver(), "libcuda");
  bench run(*cuda);
  run.set_up();
  run.open_channels();
  run.check_bytes();
  run.time_stores();
  const auto last = static_cast<unsigned>(run.queues.size() - 1);
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
          const auto blocks = run.make_blocks(to_host, size, count, name);
          run.measure(to_host, size, count, name, "one", one, false, place::device, blocks);
          if (name == "random" || name.starts_with("sparse")) {
            run.measure(to_host, size, count, name, "one", one, false, place::host, blocks);
            run.measure(to_host, size, count, name, "twice", twice, false, place::device, blocks);
            run.measure(to_host, size, count, name, "shared", shared, false, place::device, blocks);
          }
          if (all.size() >= 3 && !name.ends_with("device")) {
            run.measure(to_host, size, count, name, "two", two, false, place::device, blocks);
            run.measure(to_host, size, count, name, "two", two, true, place::device, blocks);
            run.measure(to_host, size, count, name, "three", three, false, place::device, blocks);
            if (name == "random" || name == "sparse")
              run.measure(to_host, size, count, name, "all", all, false, place::device, blocks);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
      }
  if (argc > 1) {
    run.file.set_pass(true);
    need(run.file.write(argv[1]), "writing the results");
  }
  return 0;
}
