// SPDX-License-Identifier: Apache-2.0
// What may be read behind a DMA channel's completion word: many threads, a channel each, all copy engines, every copy
// checked at once; with and without a flush, idle and beside bulk copies in both directions.
//
//     dma_order_bench [--seconds N] [--only TEXT] [FILE.json]      seconds of each case [10]; cases whose name has TEXT
//
// Exit code 1 if a flushed copy was late, or any copy wrong for good.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/channel_setup.hpp"

namespace {

using namespace pl;
using namespace pl::bench;
using dma::ordering;

constexpr std::uint64_t kTimeoutNs = 10'000'000'000;
constexpr std::size_t kSlotBytes = 64u << 10, kSlots = 1024;
constexpr std::size_t kThreadBytes = 2u << 20;  // of host and of device memory, for each thread
constexpr unsigned kMaxThreads = 12;
constexpr std::size_t kLoadBytes = 64u << 20;
constexpr std::uint32_t kListBlocks = 16;

std::uint32_t pattern(std::uint32_t slot) { return (slot + 1) * 2654435761u; }

enum class kind { to_host, list_to_host, to_device, on_device, through_device };
struct order_case {
  kind scenario;
  ordering order;
  const char* name;
  bool may_be_late;
};
constexpr order_case kCases[] = {
    {kind::to_host, ordering::none, "to the host, no flush", true},
    {kind::to_host, ordering::none_flushed, "to the host, flushed", false},
    {kind::to_host, ordering::none_settled, "to the host, settled", false},
    {kind::list_to_host, ordering::none_settled, "16 to the host, last settled", false},
    {kind::to_device, ordering::none_settled, "to the device, settled", false},
    {kind::on_device, ordering::none_settled, "on the device, settled", false},
    {kind::list_to_host, ordering::none_flushed, "16 to the host, last flushed", false},
    {kind::to_device, ordering::none, "to the device, no flush", true},
    {kind::to_device, ordering::none_flushed, "to the device, flushed", false},
    {kind::on_device, ordering::none_flushed, "on the device, flushed", false},
    {kind::through_device, ordering::flush_last, "on the device, then to the host", false},
};

struct counts {
  std::atomic<std::uint64_t> checked{0}, late{0}, wrong{0}, max_late_ns{0};
};

struct bench : channel_setup {
  using channel_setup::channel_setup;
  cu::device_ptr device = 0;
  std::byte* host = nullptr;
  std::size_t host_bytes = 0, device_bytes = 0;
  unsigned threads = 0, nodes = 1;
  void set_up();
  void place_host_memory();
  void run_thread(const order_case& asked, unsigned index, std::uint64_t end_ns, counts& seen);
  void run_load(bool to_host, const std::atomic<bool>& ends);
  bool run_case(const order_case& asked, bool is_loaded, unsigned seconds);
};

// Each thread's memory on another node, so that data and completion words take different ways.
void bench::place_host_memory() {
  while (nodes < 8 && access(format("/sys/devices/system/node/node%u", nodes).c_str(), F_OK) == 0) ++nodes;
  constexpr int kBind = 2;  // MPOL_BIND
  for (unsigned i = 0; nodes > 1 && i < threads; ++i) {
    const unsigned long mask = 1ul << (i % nodes);
    if (syscall(SYS_mbind, host + i * kThreadBytes, kThreadBytes, kBind, &mask, 64ul, 0u) != 0)
      std::printf("note: mbind: %s\n", std::strerror(errno));
  }
  std::memset(host, 0, host_bytes);
}

void bench::set_up() {
  open_cuda();
  threads = std::clamp(std::thread::hardware_concurrency() - 2, 1u, kMaxThreads);
  device_bytes = kSlots * kSlotBytes + threads * kThreadBytes + 2 * kLoadBytes;
  host_bytes = threads * kThreadBytes + 2 * kLoadBytes;
  must(cuda.cuMemAlloc_v2(&device, device_bytes), "cuMemAlloc");
  for (std::uint32_t slot = 0; slot < kSlots; ++slot)
    must(cuda.cuMemsetD32_v2(device + slot * kSlotBytes, pattern(slot), kSlotBytes / 4), "cuMemsetD32");
  must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  host = static_cast<std::byte*>(mmap(nullptr, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  place_host_memory();
  must(cuda.cuMemHostRegister_v2(host, host_bytes, 0), "cuMemHostRegister");
  open_space();
  bind(device, device_bytes, host, host_bytes);
  file.set_parameter("threads", threads);
  file.set_parameter("engines", engines.size());
  file.set_parameter("memory_nodes", nodes);
  std::printf("%u threads, %zu copy engines, %u memory nodes\n\n", threads, engines.size(), nodes);
}

void bench::run_load(bool to_host, const std::atomic<bool>& ends) {
  auto queue = need(dma::channel::open(space, {engines[to_host ? 0 : 1 % engines.size()], ordering::none, 64}), "channel");
  const std::uint64_t host_side = host_address + threads * kThreadBytes + (to_host ? 0 : kLoadBytes),
                      device_side = device_address + device_bytes - (to_host ? 1 : 2) * kLoadBytes;
  while (!ends) {
    const auto number =
        need(queue->copy(to_host ? host_side : device_side, to_host ? device_side : host_side, 4u << 20), "load");
    need(queue->wait(number, kTimeoutNs), "load");
  }
}

// Waits at most 10 ms for bytes that are not there. Counts.
template <class IsRight>
void await_bytes(IsRight is_right, counts& seen) {
  if (is_right()) return;
  constexpr std::uint64_t kGiveUpNs = 10'000'000;
  const std::uint64_t begin_ns = monotonic_ns();
  while (!is_right()) {
    if (monotonic_ns() - begin_ns < kGiveUpNs) continue;
    ++seen.wrong;
    return;
  }
  const std::uint64_t took_ns = monotonic_ns() - begin_ns;
  ++seen.late;
  std::uint64_t most = seen.max_late_ns;
  while (most < took_ns && !seen.max_late_ns.compare_exchange_weak(most, took_ns)) {}
}

void bench::run_thread(const order_case& asked, unsigned index, std::uint64_t end_ns, counts& seen) {
  auto queue = need(dma::channel::open(space, {engines[index % engines.size()], asked.order, 256}), "channel");
  auto reader =
      need(dma::channel::open(space, {engines[(index + 1) % engines.size()], ordering::none_flushed, 256}), "channel");
  std::byte* const mine = host + index * kThreadBytes;
  const std::uint64_t mine_address = host_address + index * kThreadBytes,
                      mine_on_device = device_address + kSlots * kSlotBytes + index * kThreadBytes;
  std::mt19937_64 random(index + 1);
  std::vector<dma::block> blocks;
  std::uint32_t slot = 0;
  std::uint64_t checked = 0;
  const auto wait = [&](dma::channel& channel, const result<dma::sequence>& number) {
    if (!number) need(status(number.error()), "submission");
    need(channel.wait(*number, kTimeoutNs), "copy");
  };
  const auto holds = [&](const std::byte* bytes, std::size_t size, std::uint32_t value) {
    const auto* words = reinterpret_cast<const volatile std::uint32_t*>(bytes);
    const std::size_t count = size / 4, step = count <= 1024 ? 1 : count / 64;
    for (std::size_t i = 0; i < count; i += step)  // from the end, which comes last
      if (words[count - 1 - i] != value) return false;
    return words[0] == value;
  };
  while (monotonic_ns() < end_ns) {
    slot = (slot + 1 + static_cast<std::uint32_t>(random() % (kSlots - 1))) % kSlots;  // never the same twice
    const std::size_t size = std::min<std::size_t>((4u << (random() % 15)) + 4 * (random() % 16), kSlotBytes - 256);
    const std::size_t offset = 4 * (random() % 16);
    const std::uint64_t source = device_address + slot * kSlotBytes + 4 * (random() % 16);
    switch (asked.scenario) {
      case kind::to_host:
        wait(*queue, queue->copy(mine_address + offset, source, size));
        await_bytes([&] { return holds(mine + offset, size, pattern(slot)); }, seen);
        ++checked;
        break;
      case kind::list_to_host:
        blocks.clear();
        for (std::uint32_t i = 0; i < kListBlocks; ++i)
          blocks.push_back({mine_address + i * kSlotBytes + offset, source, static_cast<std::uint32_t>(size)});
        wait(*queue, queue->copy_blocks(blocks));
        for (std::uint32_t i = 0; i < kListBlocks; ++i, ++checked)
          await_bytes([&] { return holds(mine + i * kSlotBytes + offset, size, pattern(slot)); }, seen);
        break;
      case kind::to_device:
      case kind::on_device: {
        const std::uint32_t value = asked.scenario == kind::on_device ? pattern(slot) : static_cast<std::uint32_t>(random());
        if (asked.scenario == kind::to_device) {
          auto* words = reinterpret_cast<std::uint32_t*>(mine + kSlotBytes);
          std::fill_n(words, size / 4, value);
          wait(*queue, queue->copy(mine_on_device + offset, mine_address + kSlotBytes, size));
        } else {
          wait(*queue, queue->copy(mine_on_device + offset, source, size));
        }
        // Another engine reads what was written; it is asked again until it has seen it.
        await_bytes(
            [&] {
              wait(*reader, reader->copy(mine_address + offset, mine_on_device + offset, size));
              return holds(mine + offset, size, value);
            },
            seen);
        ++checked;
        break;
      }
      case kind::through_device:
        if (!queue->copy(mine_on_device + offset, source, size)) std::exit(1);
        wait(*queue, queue->copy(mine_address + offset, mine_on_device + offset, size));
        await_bytes([&] { return holds(mine + offset, size, pattern(slot)); }, seen);
        ++checked;
        break;
    }
  }
  seen.checked += checked;
}

bool bench::run_case(const order_case& asked, bool is_loaded, unsigned seconds) {
  counts seen;
  std::atomic<bool> ends{false};
  std::vector<std::thread> load, running;
  if (is_loaded)
    for (const bool to_host : {true, false}) load.emplace_back([this, to_host, &ends] { run_load(to_host, ends); });
  const std::uint64_t end_ns = monotonic_ns() + seconds * 1'000'000'000ull;
  for (unsigned i = 0; i < threads; ++i)
    running.emplace_back([this, i, &asked, &seen, end_ns] { run_thread(asked, i, end_ns, seen); });
  for (auto& one : running) one.join();
  ends = true;
  for (auto& one : load) one.join();
  const bool is_right = seen.wrong == 0 && (asked.may_be_late || seen.late == 0);
  std::printf("%-34s %-5s %12llu %9llu %9llu %11.1f%s\n", asked.name, is_loaded ? "load" : "idle",
              static_cast<unsigned long long>(seen.checked), static_cast<unsigned long long>(seen.late),
              static_cast<unsigned long long>(seen.wrong), static_cast<double>(seen.max_late_ns) / 1e3,
              is_right ? "" : "  WRONG");
  std::fflush(stdout);
  file.add_row({{"kind", "order"},
                {"case", asked.name},
                {"is_loaded", is_loaded},
                {"copies", seen.checked.load()},
                {"late", seen.late.load()},
                {"wrong", seen.wrong.load()},
                {"max_late_ns", seen.max_late_ns.load()}});
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned seconds = 10;
  int next = 1;
  std::string only;
  for (; argc > next + 1 && std::strncmp(argv[next], "--", 2) == 0; next += 2) {
    if (std::strcmp(argv[next], "--seconds") == 0) seconds = static_cast<unsigned>(std::atoi(argv[next + 1]));
    else if (std::strcmp(argv[next], "--only") == 0) only = argv[next + 1];
    else return std::printf("unknown: %s\n", argv[next]), 2;
  }
  const auto cuda = need(cu::driver(), "libcuda");
  ::bench run(*cuda, "dma_order_bench");
  run.set_up();
  std::printf("%-34s %-5s %12s %9s %9s %11s\n", "case", "", "copies", "late", "wrong", "at most us");
  bool is_right = true;
  for (const bool is_loaded : {false, true})
    for (const auto& one : kCases)
      if (std::strstr(one.name, only.c_str()) != nullptr) is_right &= run.run_case(one, is_loaded, seconds);
  run.file.set_pass(is_right);
  if (argc > next) need(run.file.write(argv[next]), "result file");
  std::printf("%s\n", is_right ? "all right" : "SOMETHING IS WRONG");
  std::fflush(stdout);
  _exit(is_right ? 0 : 1);
}
