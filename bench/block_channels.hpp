// SPDX-License-Identifier: Apache-2.0
// Scattered blocks on copy engines, the CPU left out: memory on both sides, a channel for each engine, lists whose commands
// are written before the clock starts. For programs that compare ways to give such lists to engines.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/must.hpp"
#include "cuda/driver_table.hpp"
#include "dma/channel.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "os/device_io.hpp"
#include "rm/export_listener.hpp"

namespace pl::bench {

constexpr std::size_t kMemoryBytes = std::size_t{2} << 30;
constexpr std::size_t kCommandBytes = std::size_t{4} << 20;  // for each channel
constexpr std::uint64_t kTimeoutNs = 2'000'000'000;

enum class place { device, host };  // of the commands

// Host memory that the lists use: ordinary memory with huge pages, CUDA's pinned memory, CUDA's physical memory of a NUMA
// node, whose object the channels share: the last may have translations of 2 MiB.
enum class host_kind { ordinary, pinned, physical };

// How a list ends: its word behind a flush, or written by a fill that waits for the copies, or with no order at all.
constexpr std::uint32_t kFlushed = dma::launch::kReleaseWord | dma::launch::kFlush, kUnordered = dma::launch::kReleaseWord,
                        kSettled = 0;

struct test_channel {
  std::unique_ptr<dma::channel> queue;
  unsigned engine = 0;
  std::uint64_t commands[2] = {};  // their addresses for the channel, by place
  std::byte* view[2] = {};         // the same for the CPU
  volatile std::uint32_t* word = nullptr;
  std::uint64_t word_address = 0;
};

struct block_channels {
  block_channels(const cu::driver_table& table, const char* program) : cuda(table), file(program, {program}) {}

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
  result_file file;

  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda, code).c_str());
    std::exit(1);
  }
  void set_up(host_kind kind = host_kind::ordinary);
  void open_channels();
  std::vector<dma::block> make_blocks(bool to_host, std::uint32_t size, std::size_t count, const std::string& order) const;
  std::uint64_t write_list(test_channel& one, std::span<const dma::block> blocks, place home, std::uint32_t end_flags);
  void wait_for(const test_channel& one, std::uint32_t number, std::uint64_t begin_ns) const;
  void bind_host_memory(host_kind kind, const rm::gpu& gpu);
  void allocate_physical(const rm::gpu& gpu);
  double run_ns(const std::vector<std::vector<dma::block>>& parts, std::span<const unsigned> chosen, place home);
};

inline void block_channels::set_up(host_kind kind) {
  need(cu::initialize(cuda), "cuInit");
  cu::device_t ordinal = 0;
  cu::context_t context = nullptr;
  must(cuda.cuDeviceGet(&ordinal, 0), "cuDeviceGet");
  must(cuda.cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
  must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuda.cuMemAlloc_v2(&device, kMemoryBytes), "cuMemAlloc");
  char text[32] = {};
  must(cuda.cuDeviceGetPCIBusId(text, sizeof text, ordinal), "cuDeviceGetPCIBusId");
  device_io& io = real_device_io();
  client = need(rm::client::open(io), "resource manager");
  const rm::gpu* gpu = need(client->find_gpu(need(rm::parse_pci_address(text), "PCI address")), "GPU");
  space = need(dma::address_space::open(*client, *gpu, need(rm::driver_version(io), "driver version")), "address space");
  const auto pieces = need(rm::find_backing(cuda, device, kMemoryBytes), "what lies behind CUDA's memory");
  regions.push_back(
      need(space->bind_object(pieces[0].client, pieces[0].object, pieces[0].offset, kMemoryBytes), "binding GPU memory"));
  bind_host_memory(kind, *gpu);
  device_address = regions[0].address();
  host_address = regions[1].address();
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda, 0);
  facts.backend = "rm";
  file.set_machine(facts);
}

inline void block_channels::allocate_physical(const rm::gpu& gpu) {
  cu::allocation_prop wanted{};
  wanted.type = cu::allocation_type::pinned;
  wanted.requested_handle_types = cu::handle_type::posix_fd;
  wanted.location = {cu::location_type::host_numa, 0};
  cu::physical_t memory = 0;
  must(cuda.cuMemCreate(&memory, kMemoryBytes, &wanted, 0), "cuMemCreate of host memory");
  cu::device_ptr address = 0;
  must(cuda.cuMemAddressReserve(&address, kMemoryBytes, 0, 0, 0), "cuMemAddressReserve");
  must(cuda.cuMemMap(address, kMemoryBytes, 0, memory, 0), "cuMemMap");
  const cu::access_desc access[] = {{{cu::location_type::host_numa, 0}, cu::access_flags::read_write},
                                    {{cu::location_type::device, 0}, cu::access_flags::read_write}};
  must(cuda.cuMemSetAccess(address, kMemoryBytes, access, 2), "cuMemSetAccess");
  host = reinterpret_cast<std::byte*>(address);
  int shared = -1;
  must(cuda.cuMemExportToShareableHandle(&shared, memory, cu::handle_type::posix_fd, 0), "cuMemExportToShareableHandle");
  const rm::handle object = need(client->import(gpu, shared), "importing host memory");
  regions.push_back(need(space->bind_import(object, 0, kMemoryBytes), "binding CUDA's host memory"));
}

inline void block_channels::bind_host_memory(host_kind kind, const rm::gpu& gpu) {
  std::uint64_t begin_ns = monotonic_ns();
  if (kind == host_kind::physical) {
    allocate_physical(gpu);
  } else {
    if (kind == host_kind::pinned) {
      void* pinned = nullptr;
      must(cuda.cuMemHostAlloc(&pinned, kMemoryBytes, 0), "cuMemHostAlloc");
      host = static_cast<std::byte*>(pinned);
    } else {
      host =
          static_cast<std::byte*>(mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      madvise(host, kMemoryBytes, MADV_HUGEPAGE);
      std::memset(host, 0, kMemoryBytes);
    }
    begin_ns = monotonic_ns();
    regions.push_back(need(space->bind_host(host, kMemoryBytes), "binding host memory"));
  }
  std::printf("binding 2 GiB of host memory: %.1f ms\n", static_cast<double>(monotonic_ns() - begin_ns) / 1e6);
}

inline void block_channels::open_channels() {
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
inline std::vector<dma::block> block_channels::make_blocks(bool to_host, std::uint32_t size, std::size_t count,
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
  // "by N": each N blocks sorted by the host's addresses.
  if (const std::size_t part = order.find(" by ");
      part != std::string::npos && !order.ends_with("K") && !order.ends_with("M"))
    if (const auto step = static_cast<std::size_t>(std::atoi(order.c_str() + part + 4)); step != 0)
      for (std::size_t i = 0; i < count; i += step)
        std::sort(blocks.begin() + static_cast<std::ptrdiff_t>(i),
                  blocks.begin() + static_cast<std::ptrdiff_t>(std::min(count, i + step)),
                  [&](const auto& a, const auto& b) { return host_of(a) < host_of(b); });
  // By regions of 64 KiB and of 2 MiB only.
  if (order.ends_with("by 64K") || order.ends_with("by 2M")) {
    const unsigned shift = order.ends_with("2M") ? 21 : 16;
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](const auto& a, const auto& b) { return host_of(a) >> shift < host_of(b) >> shift; });
  }
  if (order.ends_with("by host"))
    std::sort(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) { return host_of(a) < host_of(b); });
  if (order.ends_with("by device"))
    std::sort(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) { return device_of(a) < device_of(b); });
  return blocks;
}

// The commands of a list, where its channel fetches them; the entry that names them. `end_flags`: of the last launch;
// kSettled: a fill behind it writes the word.
inline std::uint64_t block_channels::write_list(test_channel& one, std::span<const dma::block> blocks, place home,
                                                std::uint32_t end_flags) {
  const auto index = static_cast<std::size_t>(home);
  std::vector<std::uint32_t> room(blocks.size() * 7 + 64);
  dma::command_writer commands(room);
  commands.completion(one.word_address, round);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const dma::block& block = blocks[k];
    const bool is_last = k + 1 == blocks.size() && end_flags != kSettled;
    const std::uint32_t flags = dma::launch::kPipelined | (is_last ? end_flags : 0);
    if (k == 0) commands.copy(block.destination, block.source, block.size_bytes, flags);
    else commands.copy_again(block.destination, block.source, flags);
  }
  if (end_flags == kSettled) commands.fill(one.word_address, round, 1, dma::launch::kNotPipelined);
  if (home == place::device) arch::copy_to(arch::mapping_type::wc, one.view[0], room.data(), commands.words() * 4);
  else std::memcpy(one.view[1], room.data(), commands.words() * 4);
  return dma::ring_entry(one.commands[index], static_cast<std::uint32_t>(commands.words()));
}

inline void block_channels::wait_for(const test_channel& one, std::uint32_t number, std::uint64_t begin_ns) const {
  for (std::uint64_t polls = 0; *one.word != number; ++polls)
    if (polls % 4096 == 4095) {
      one.queue->ring();
      if (monotonic_ns() - begin_ns <= kTimeoutNs) continue;
      const auto reason = one.queue->fault();
      std::printf("FAILED: COPY%u does not end: %s\n", one.engine, reason ? reason->message.c_str() : "no reason");
      std::exit(1);
    }
}

// From the first doorbell until the CPU sees the last word.
inline double block_channels::run_ns(const std::vector<std::vector<dma::block>>& parts, std::span<const unsigned> chosen,
                                     place home) {
  std::vector<std::uint64_t> entries;
  ++round;
  for (std::size_t i = 0; i < parts.size(); ++i) entries.push_back(write_list(queues[chosen[i]], parts[i], home, kFlushed));
  usleep(20);  // what was written to the device is there
  const std::uint64_t begin_ns = monotonic_ns();
  for (std::size_t i = 0; i < parts.size(); ++i) queues[chosen[i]].queue->queue_entries({&entries[i], 1});
  for (std::size_t i = 0; i < parts.size(); ++i) wait_for(queues[chosen[i]], round, begin_ns);
  return static_cast<double>(monotonic_ns() - begin_ns);
}

}  // namespace pl::bench
