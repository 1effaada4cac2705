// SPDX-License-Identifier: Apache-2.0
// A DMA channel of our own on a real GPU: right, then how fast, beside CUDA's copies of the same memory in the same turns.
//
//     dma_bench [FILE.json]
//
// Right: every size and alignment compared byte by byte, rows, fills, lists, releases behind copies, armed channels,
// completion words without a flush, a bad address and a new channel after it. Exit code 1 if anything is wrong.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/channel_setup.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

constexpr std::size_t kBytes = 64u << 20;
constexpr std::uint64_t kTimeoutNs = 2'000'000'000;
constexpr std::pair<dma::ordering, const char*> kOrders[] = {{dma::ordering::none, "none"},
                                                             {dma::ordering::none_flushed, "none, flushed"},
                                                             {dma::ordering::none_settled, "none, settled"},
                                                             {dma::ordering::waits, "waits"},
                                                             {dma::ordering::flush_first, "flush first"},
                                                             {dma::ordering::flush_last, "flush last"}};
int failures = 0;

void check(bool is_right, const std::string& step) {
  if (is_right) return;
  ++failures;
  std::printf("WRONG: %s\n", step.c_str());
}

struct bench : channel_setup {
  using channel_setup::channel_setup;
  cu::device_ptr device = 0;
  std::byte* host = nullptr;
  std::unique_ptr<dma::channel> queue;
  unsigned engine = 0;

  void copy(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes) {
    const auto number = queue->copy(destination, source, size_bytes);
    if (number && queue->wait(*number, kTimeoutNs)) return;
    std::printf("FAILED: a copy of %llu bytes did not end\n", static_cast<unsigned long long>(size_bytes));
    std::exit(1);
  }

  void open_channel(const dma::channel_options& options) {
    queue.reset();
    queue = need(dma::channel::open(space, options), "channel");
  }
  void set_up();
  void check_copies();
  void check_others();
  void check_order();
  void check_fault();
  void time_copies(const char* order);
  void time_lists();
};

void bench::set_up() {
  open_cuda();
  must(cuda.cuMemAlloc_v2(&device, kBytes), "cuMemAlloc");
  host = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  must(cuda.cuMemHostRegister_v2(host, kBytes, 0), "cuMemHostRegister");
  const std::uint64_t begin_ns = monotonic_ns();
  open_space();
  engine = engines.front();
  open_channel({engine, dma::ordering::waits, 1024});
  const double set_up_ms = static_cast<double>(monotonic_ns() - begin_ns) / 1e6;
  bind(device, kBytes, host, kBytes);
  std::printf("%s, driver %s, COPY%u of %zu engines, set up in %.1f ms\n", pci_address.c_str(), driver.c_str(), engine,
              engines.size(), set_up_ms);
  file.set_parameter("driver", driver);
  file.set_parameter("engine", engine);
  file.set_parameter("set_up_ms", set_up_ms);
}

// Each size, at odd places on both sides, both ways, with what lies around.
void bench::check_copies() {
  std::mt19937_64 random(7);
  std::vector<std::byte> expected(1u << 20), seen(1u << 20);
  for (std::size_t size : {1u, 2u, 3u, 4u, 7u, 8u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 65536u, 1000003u})
    for (int round = 0; round < 4; ++round) {
      const std::size_t host_offset = random() % 4096, device_offset = random() % 4096;
      std::memset(host, 0x11, expected.size() + 8192);
      must(cuda.cuMemsetD32_v2(device, 0x22222222, (expected.size() + 8192) / 4), "cuMemsetD32");
      must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");  // it returns before the memory is set
      for (std::size_t i = 0; i < size; ++i) host[host_offset + i] = static_cast<std::byte>(random());
      copy(device_address + device_offset, host_address + host_offset, size);
      std::vector<std::byte> around(size + 2);
      must(cuda.cuMemcpyDtoH_v2(around.data(), device + device_offset - (device_offset ? 1 : 0),
                                size + (device_offset ? 2 : 1)),
           "cuMemcpyDtoH");
      check(std::memcmp(around.data() + (device_offset ? 1 : 0), host + host_offset, size) == 0,
            format("%zu bytes to the device", size));
      check((!device_offset || around[0] == std::byte{0x22}) && around[size + (device_offset ? 1 : 0)] == std::byte{0x22},
            "bytes around a copy to the device");
      copy(host_address + (2u << 20) + host_offset, device_address + device_offset, size);
      check(std::memcmp(host + (2u << 20) + host_offset, host + host_offset, size) == 0,
            format("%zu bytes to the host", size));
    }
}

void bench::check_others() {
  auto* words = reinterpret_cast<std::uint32_t*>(host);
  need(queue->wait(need(queue->fill(device_address, 0xabcd1234, 1u << 20), "fill"), kTimeoutNs), "fill");
  copy(host_address, device_address, 1u << 20);
  check(std::all_of(words, words + (1u << 18), [](std::uint32_t word) { return word == 0xabcd1234; }), "a fill");
  // 100 rows of 300 bytes, pitches 512 and 1024.
  for (std::size_t i = 0; i < 100 * 512; ++i) host[i] = static_cast<std::byte>(i * 7);
  need(queue->wait(need(queue->copy_rows(device_address, 1024, host_address, 512, 300, 100), "rows"), kTimeoutNs), "rows");
  copy(host_address + (1u << 20), device_address, 100 * 1024);
  bool is_right = true;
  for (std::size_t row = 0; row < 100; ++row)
    is_right &= std::memcmp(host + (1u << 20) + row * 1024, host + row * 512, 300) == 0;
  check(is_right, "rows");
  // A list of blocks of many sizes, scattered.
  std::mt19937_64 random(3);
  std::vector<dma::block> blocks;
  for (std::size_t i = 0; i < (16u << 20); ++i) host[i] = static_cast<std::byte>(i * 31 >> 3);
  copy(device_address, host_address, 16u << 20);
  std::memset(host + (32u << 20), 0, 16u << 20);
  for (std::uint32_t i = 0; i < 20'000; ++i)
    blocks.push_back(
        {host_address + (32u << 20) + i * 800u, device_address + i * 800u, static_cast<std::uint32_t>(1 + random() % 800)});
  std::shuffle(blocks.begin(), blocks.end(), random);
  need(queue->wait(need(queue->copy_blocks(blocks), "list"), kTimeoutNs), "list");
  is_right = true;
  for (const auto& one : blocks) {
    const std::uint64_t offset = one.source - device_address;
    is_right &= std::memcmp(host + (32u << 20) + offset, host + offset, one.size_bytes) == 0;
  }
  check(is_right, "a list of 20000 blocks");
}

// What was copied is there when the completion word of a flushed operation is seen; a release comes behind the copies before
// it; a channel that waits for a word starts when the CPU stores it.
void bench::check_order() {
  auto* words = reinterpret_cast<std::uint32_t*>(host);
  std::uint64_t wrong = 0;
  std::mt19937_64 random(11);
  struct order_case {
    dma::ordering order;
    const char* name;
    bool waits;
    unsigned seconds;
  };
  using dma::ordering;
  for (const order_case& one : {order_case{ordering::none, "none", true, 3},
                                {ordering::none, "none", false, 3},
                                {ordering::none_flushed, "none, flushed", true, 8},
                                {ordering::none_settled, "none, settled", true, 8},
                                {ordering::waits, "waits", false, 8},
                                {ordering::flush_first, "flush first", false, 3},
                                {ordering::flush_last, "flush last", false, 3}}) {
    open_channel({engine, one.order, 1024});
    std::uint64_t old = 0, late = 0, lost = 0, checked = 0;
    const std::uint64_t end_ns = monotonic_ns() + one.seconds * 1'000'000'000ull;
    for (std::uint32_t round = 1; monotonic_ns() < end_ns; ++round, ++checked) {
      constexpr std::uint64_t kLostNs = 200'000'000;
      const std::uint32_t size = 64u << (random() % 11);
      const auto filled = need(queue->fill(device_address, round, size), "fill");
      if (one.waits) need(queue->wait(filled, kTimeoutNs), "fill");
      const auto copied = need(queue->copy(host_address, device_address, size), "copy");
      if (!queue->wait(copied, kLostNs)) {
        ++lost;
        open_channel({engine, one.order, 1024});
        continue;
      }
      const std::size_t last = size / 4 - 1, somewhere = random() % (last + 1);
      const auto is_old = [&] {
        return words[0] != round || words[last] != round || words[last / 2] != round || words[somewhere] != round;
      };
      if (!is_old()) continue;
      ++old;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      late += !is_old();  // the host's bytes came late; otherwise the engine has read old ones
    }
    // Without a flush bytes may come late, with one not; without an order old ones may be read.
    const bool is_flushed = one.order == ordering::none_flushed || one.order == ordering::flush_last;
    check((late == 0 || !is_flushed) && (old == late || one.order == ordering::none) && lost == 0,
          "what follows an operation sees what it wrote");
    const std::string title = format("%s, fill %s", one.name, one.waits ? "waited for" : "not waited for");
    std::printf("order %s: %llu copies to the host, %llu old, %llu of them only late, %llu lost\n", title.c_str(),
                static_cast<unsigned long long>(checked), static_cast<unsigned long long>(old),
                static_cast<unsigned long long>(late), static_cast<unsigned long long>(lost));
    file.add_row({{"kind", "order"}, {"case", title}, {"copies", checked}, {"old", old}, {"late", late}, {"lost", lost}});
  }
  open_channel({engine, dma::ordering::waits, 1024});

  wrong = 0;
  auto* flag = reinterpret_cast<volatile std::uint32_t*>(host + kBytes - 4096);
  for (std::uint32_t round = 1; round <= 200; ++round) {
    need(queue->fill(device_address, round, 4u << 20), "fill");
    need(queue->copy(host_address, device_address, 4u << 20), "copy");
    const auto number = need(queue->release(host_address + kBytes - 4096, round), "release");
    while (*flag != round) {}
    wrong += words[0] != round || words[(1u << 20) - 1] != round;
    need(queue->wait(number, kTimeoutNs), "release");
  }
  check(wrong == 0, format("%llu releases came before their copies", static_cast<unsigned long long>(wrong)));

  std::vector<double> armed_ns;
  auto* arm = reinterpret_cast<volatile std::uint32_t*>(host + kBytes - 8192);
  *arm = 0;
  for (std::uint32_t round = 1; round <= 500; ++round) {
    need(queue->acquire(host_address + kBytes - 8192, round), "acquire");
    const auto number = need(queue->copy(host_address, device_address, 4096), "armed copy");
    const std::uint64_t held_until = monotonic_ns() + 30'000;
    while (monotonic_ns() < held_until) {}
    check(!queue->is_done(number), "an armed copy waits");
    armed_ns.push_back(time_once_ns([&] {
      *arm = round;
      (void)queue->wait(number, kTimeoutNs);
    }));
  }
  auto row = latency_fields(armed_ns);
  row["kind"] = "armed";
  file.add_row(row);
  std::printf("armed, word in host memory to 4 KiB in the host: %.2f us\n", row["latency_ns_p50"].get<double>() / 1e3);
}

// A wrong address ends the channel it was given to and nothing else.
void bench::check_fault() {
  const auto number = queue->copy(host_address, 0x7f00'0000'0000, 4096);
  const std::uint64_t begin_ns = monotonic_ns();
  const status ended = number ? queue->wait(*number, kTimeoutNs) : status(number.error());
  check(ended.code() == EIO, "a copy from an address where nothing is ends with the driver's reason");
  std::printf("fault: after %.1f ms: %s\n", static_cast<double>(monotonic_ns() - begin_ns) / 1e6,
              ended ? "none" : ended.error().message.c_str());
  open_channel({engine, dma::ordering::waits, 1024});
  std::memset(host, 0x5a, 4096);
  copy(device_address, host_address, 4096);
  std::uint32_t word = 0;
  must(cuda.cuMemcpyDtoH_v2(&word, device, 4), "CUDA after a fault of ours");
  check(word == 0x5a5a5a5a, "a copy after a fault");
}

void bench::time_copies(const char* order) {
  struct contender_of_size {
    const char* name;
    std::function<void(std::size_t)> run;
  };
  const std::vector<contender_of_size> contenders{
      {"dma_to_host", [&](std::size_t size) { copy(host_address, device_address, size); }},
      {"cuda_to_host", [&](std::size_t size) { cuda.cuMemcpyDtoH_v2(host, device, size); }},
      {"dma_to_device", [&](std::size_t size) { copy(device_address, host_address, size); }},
      {"cuda_to_device", [&](std::size_t size) { cuda.cuMemcpyHtoD_v2(device, host, size); }},
      {"dma_on_device", [&](std::size_t size) { copy(device_address + kBytes / 2, device_address, size); }},
  };
  std::printf("\n%9s", "us (p50)");
  for (const auto& one : contenders) std::printf(" %14s", one.name);
  std::printf(" %14s\n", "submission ns");
  for (std::size_t size = 4; size <= (16u << 20); size *= 4) {
    std::vector<std::vector<double>> times_ns(contenders.size());
    std::vector<double> submit_ns;
    const int rounds = size <= (256u << 10) ? 400 : 12;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        contenders[i].run(size);
        for (int turn = 0; turn < 5; ++turn) times_ns[i].push_back(time_once_ns([&] { contenders[i].run(size); }));
      }
      dma::sequence number = 0;
      submit_ns.push_back(time_once_ns([&] { number = *queue->copy(host_address, device_address, size); }));
      (void)queue->wait(number, kTimeoutNs);
    }
    std::printf("%9zu", size);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto row = latency_fields(times_ns[i]);
      row["kind"] = "copy";
      row["contender"] = contenders[i].name;
      row["order"] = order;
      row["size_bytes"] = size;
      file.add_row(row);
      std::printf(" %14.2f", row["latency_ns_p50"].get<double>() / 1e3);
    }
    auto row = latency_fields(submit_ns);
    row["kind"] = "submission";
    row["order"] = order;
    row["size_bytes"] = size;
    file.add_row(row);
    std::printf(" %14.0f\n", row["latency_ns_p50"].get<double>());
  }
}

void bench::time_lists() {
  std::printf("\n%24s %12s %12s %12s\n", "scattered blocks", "to host GB/s", "to dev. GB/s", "CPU ns/block");
  for (const std::uint32_t size : {512u, 2048u, 4096u, 16384u, 65536u})
    for (const std::uint32_t count : {64u, 1024u, 16384u}) {
      if (std::uint64_t{size} * count * 2 > kBytes) continue;
      double gb_per_s[2] = {}, cpu_ns = 0;
      for (const bool to_host : {true, false}) {
        std::vector<dma::block> blocks;
        for (std::uint32_t i = 0; i < count; ++i) {
          const std::uint64_t offset = std::uint64_t{i} * 2 * size;
          blocks.push_back(to_host ? dma::block{host_address + offset, device_address + offset, size}
                                   : dma::block{device_address + offset, host_address + offset, size});
        }
        std::vector<double> times_ns, submit_ns;
        for (int round = 0; round < 60; ++round) {
          dma::sequence number = 0;
          double submitting = 0;
          times_ns.push_back(time_once_ns([&] {
            const std::uint64_t begin = monotonic_ns();
            number = *queue->copy_blocks(blocks);
            submitting = static_cast<double>(monotonic_ns() - begin);
            (void)queue->wait(number, kTimeoutNs);
          }));
          submit_ns.push_back(submitting / count);
        }
        auto row = latency_fields(times_ns);
        gb_per_s[to_host ? 0 : 1] = std::uint64_t{size} * count / row["latency_ns_p50"].get<double>();
        cpu_ns = latency_fields(submit_ns)["latency_ns_p50"].get<double>();
        row["kind"] = "list";
        row["direction"] = to_host ? "to_host" : "to_device";
        row["size_bytes"] = size;
        row["blocks"] = count;
        row["bandwidth_gb_per_s"] = gb_per_s[to_host ? 0 : 1];
        row["submission_ns_per_block"] = cpu_ns;
        file.add_row(row);
      }
      std::printf("%12u x %9u %12.1f %12.1f %12.1f\n", count, size, gb_per_s[0], gb_per_s[1], cpu_ns);
    }
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = need(cu::driver(), "libcuda");
  ::bench run(*cuda, "dma_bench");
  run.set_up();
  run.check_copies();
  run.check_others();
  for (const auto& [order, name] : kOrders) {
    std::printf("\norder: %s\n", name);
    run.open_channel({run.engine, order, 1024});
    run.time_copies(name);
  }
  run.open_channel({run.engine, dma::ordering::waits, 1024});
  run.time_lists();
  run.check_order();
  run.check_fault();
  run.file.set_pass(failures == 0);
  if (argc > 1) need(run.file.write(argv[1]), "result file");
  std::printf("%s\n", failures == 0 ? "all right" : "SOMETHING IS WRONG");
  std::fflush(stdout);
  _exit(failures == 0 ? 0 : 1);  // CUDA's context and our client end with the process
}
