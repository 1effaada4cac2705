// SPDX-License-Identifier: Apache-2.0
// DMA channels between GPUs beside CUDA's copies: right, then how fast. Every ordered pair of GPUs, both by the sender's
// engine ("push") and the receiver's ("pull"): one copy by size, lists of scattered blocks, blocks by the planner, all pairs
// at once; and whether bytes are there when the completion word is seen, idle and beside other copies.
//
//     dma_peer_bench [FILE.json] [quick]
//
// Exit code 1 if anything is wrong, 0 without two GPUs that reach each other.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/must.hpp"
#include "copy/channel_source.hpp"
#include "copy/planner.hpp"
#include "cuda/driver_table.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "rm/export_listener.hpp"

namespace {

using namespace pl;

constexpr std::uint64_t kTimeoutNs = 10'000'000'000;
int failures = 0;

void check(bool is_right, const std::string& step) {
  if (is_right) return;
  ++failures;
  std::printf("WRONG: %s\n", step.c_str());
}

struct side {
  int ordinal = 0;
  cu::context_t context = nullptr;
  cu::device_ptr memory = 0;
  cu::stream_t stream = nullptr, other_stream = nullptr;
  copy::channel_source source;
  dma::region own;
  std::byte* view = nullptr;  // of the memory's beginning, through BAR1
};

struct times {
  double p50 = 0, p99 = 0;
};

class bench {
 public:
  bench(const cu::driver_table& table, bool is_quick)
      : cuda_(table), bytes_(std::size_t{is_quick ? 64u : 1024u} << 20), is_quick_(is_quick) {}
  bool set_up();
  void measure_pair(side& sender, side& receiver);
  void measure_planner();
  void measure_all_at_once();
  void check_words(side& sender, side& receiver, bool is_loaded);
  result_file file{"dma_peer_bench", {"dma_peer_bench"}};
  std::vector<side> sides;

 private:
  using peer_copy = int (*)(cu::device_ptr, cu::context_t, cu::device_ptr, cu::context_t, std::size_t, cu::stream_t);
  static constexpr std::size_t kViewBytes = 32u << 20;

  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda_, code).c_str());
    std::exit(1);
  }
  void use(const side& one) const { must(cuda_.cuCtxSetCurrent(one.context), "cuCtxSetCurrent"); }
  void fill(const side& one, std::uint64_t offset, std::size_t bytes, std::uint32_t seed) const {
    std::vector<std::uint32_t> words(bytes / 4);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = seed + static_cast<std::uint32_t>(i) * 2654435761u;
    use(one);
    must(cuda_.cuMemcpyHtoD_v2(one.memory + offset, words.data(), bytes), "cuMemcpyHtoD");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  std::vector<std::uint32_t> read(const side& one, std::uint64_t offset, std::size_t bytes) const {
    std::vector<std::uint32_t> out(bytes / 4);
    use(one);
    must(cuda_.cuMemcpyDtoH_v2(out.data(), one.memory + offset, bytes), "cuMemcpyDtoH");
    return out;
  }
  dma::region bind(const side& user, const side& owner) const;
  std::unique_ptr<dma::channel> open(const side& user) const;
  template <class Run>
  static times time(unsigned repeats, Run run) {
    std::vector<double> us;
    for (unsigned i = 0; i < repeats; ++i) {
      const std::uint64_t begin_ns = monotonic_ns();
      run();
      us.push_back(static_cast<double>(monotonic_ns() - begin_ns) / 1e3);
    }
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us[us.size() * 99 / 100]};
  }
  void by_cuda(const side& sender, const side& receiver, std::uint64_t to_offset, std::uint64_t from_offset,
               std::size_t bytes, cu::stream_t stream) const {
    must(copy_(receiver.memory + to_offset, receiver.context, sender.memory + from_offset, sender.context, bytes, stream),
         "cuMemcpyPeerAsync");
  }
  void add(const char* kind, const std::string& method, const side& sender, const side& receiver, std::uint64_t bytes,
           std::size_t count, const times& found);
  void measure_lists(side& sender, side& receiver, dma::channel& queue, const dma::region& peer, const char* method,
                     bool pulls);

  const cu::driver_table& cuda_;
  const std::size_t bytes_;
  const bool is_quick_;
  peer_copy copy_ = nullptr;
};

bool bench::set_up() {
  if (status ready = cu::initialize(cuda_); !ready) return std::printf("FAILED: %s\n", ready.error().message.c_str()), false;
  copy_ = reinterpret_cast<peer_copy>(dlsym(cuda_.library, "cuMemcpyPeerAsync"));
  int count = 0, can = 0;
  must(cuda_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count >= 2) must(cuda_.cuDeviceCanAccessPeer(&can, 0, 1), "cuDeviceCanAccessPeer");
  if (can == 0 || copy_ == nullptr) return std::printf("no two GPUs that reach each other\n"), false;
  sides.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    side& one = sides[static_cast<std::size_t>(i)];
    one.ordinal = i;
    must(cuda_.cuDevicePrimaryCtxRetain(&one.context, i), "cuDevicePrimaryCtxRetain");
    use(one);
    must(cuda_.cuMemAlloc_v2(&one.memory, bytes_), "cuMemAlloc");
    must(cuda_.cuMemsetD32_v2(one.memory, 7, bytes_ / 4), "cuMemsetD32");
    must(cuda_.cuStreamCreate(&one.stream, 1), "cuStreamCreate");
    must(cuda_.cuStreamCreate(&one.other_stream, 1), "cuStreamCreate");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
    one.source = need(copy::channel_source::open(cuda_, i), "channels");
    const auto piece = need(rm::find_backing(cuda_, one.memory, bytes_), "what lies behind CUDA's memory").at(0);
    one.own = need(one.source.addresses->bind_object(piece.client, piece.object, piece.offset, bytes_), "binding");
    auto& objects = one.source.addresses->objects();
    one.view = static_cast<std::byte*>(
        need(objects.owner().map(objects.device(), one.own.memory(), one.own.offset(), kViewBytes, nullptr), "BAR1")
            .address);
  }
  for (const side& one : sides)
    for (const side& other : sides) {
      if (&one == &other) continue;
      use(one);
      (void)cuda_.cuCtxEnablePeerAccess(other.context, 0);  // CUDA's copies need it to be quick
    }
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda_, 0);
  facts.backend = "rm";
  file.set_machine(facts);
  return true;
}

dma::region bench::bind(const side& user, const side& owner) const {
  return need(user.source.addresses->bind_share(owner.own.memory(), owner.own.offset(), bytes_, &owner.own.owner()), "peer");
}

std::unique_ptr<dma::channel> bench::open(const side& user) const {
  dma::channel_options options;
  options.memory_bytes = 8u << 20;
  options.engine = user.source.addresses->peer_engine().value_or(user.source.engines.front());
  return need(dma::channel::open(user.source.addresses, options), "channel");
}

void bench::add(const char* kind, const std::string& method, const side& sender, const side& receiver, std::uint64_t bytes,
                std::size_t count, const times& found) {
  const double rate = static_cast<double>(bytes) * static_cast<double>(count) / found.p50 / 1e3;
  std::printf("%-10s %d->%d %-22s %10llu B x %5zu: %10.2f us p50, %10.2f us p99, %7.1f GB/s\n", kind, sender.ordinal,
              receiver.ordinal, method.c_str(), static_cast<unsigned long long>(bytes), count, found.p50, found.p99, rate);
  file.add_row({{"kind", kind},
                {"method", method},
                {"from", sender.ordinal},
                {"to", receiver.ordinal},
                {"bytes", bytes},
                {"count", count},
                {"p50_us", found.p50},
                {"p99_us", found.p99},
                {"gb_per_s", rate}});
}

// The sender's memory goes to the receiver's.
void bench::measure_pair(side& sender, side& receiver) {
  const auto far = bind(sender, receiver), near = bind(receiver, sender);
  const auto push = open(sender), pull = open(receiver);
  std::printf("%d->%d: push by COPY%u, pull by COPY%u\n", sender.ordinal, receiver.ordinal, push->engine(), pull->engine());
  for (std::uint64_t bytes = 8; bytes <= bytes_; bytes *= bytes < 1024 ? 8 : 4) {
    const unsigned repeats = is_quick_ ? 5 : bytes >= (4u << 20) ? 15 : 1000;
    const auto run = [&](dma::channel& queue, std::uint64_t target, std::uint64_t origin, dma::ordering order) {
      return time(repeats,
                  [&] { need(queue.wait(need(queue.copy(target, origin, bytes, order), "copy"), kTimeoutNs), "wait"); });
    };
    const std::size_t looked_at = std::min<std::size_t>(bytes, 16u << 20) & ~std::size_t{3};
    const auto is_right = [&](const char* method) {
      check(read(receiver, 0, looked_at) == read(sender, 0, looked_at),
            format("%s of %llu B", method, (unsigned long long)bytes));
    };
    fill(sender, 0, looked_at, static_cast<std::uint32_t>(bytes) + 1);
    add("copy", "push", sender, receiver, bytes, 1,
        run(*push, far.address(), sender.own.address(), dma::ordering::none_settled));
    is_right("push");
    fill(sender, 0, looked_at, static_cast<std::uint32_t>(bytes) + 2);
    add("copy", "pull", sender, receiver, bytes, 1,
        run(*pull, receiver.own.address(), near.address(), dma::ordering::none_settled));
    is_right("pull");
    fill(sender, 0, looked_at, static_cast<std::uint32_t>(bytes) + 3);
    add("copy", "push flushed", sender, receiver, bytes, 1,
        run(*push, far.address(), sender.own.address(), dma::ordering::none_flushed));
    is_right("push flushed");
    add("copy", "push unsettled", sender, receiver, bytes, 1,
        run(*push, far.address(), sender.own.address(), dma::ordering::none));
    use(sender);
    add("copy", "cuMemcpyPeerAsync", sender, receiver, bytes, 1, time(repeats, [&] {
          by_cuda(sender, receiver, 0, 0, bytes, sender.stream);
          must(cuda_.cuStreamSynchronize(sender.stream), "cuStreamSynchronize");
        }));
  }
  measure_lists(sender, receiver, *push, far, "push", false);
  measure_lists(sender, receiver, *pull, near, "pull", true);
}

void bench::measure_lists(side& sender, side& receiver, dma::channel& queue, const dma::region& peer, const char* method,
                          bool pulls) {
  std::mt19937_64 random(11);
  for (const auto& [size, count] :
       {std::pair{4096u, 1024u}, {16384u, 64u}, {16384u, 1024u}, {16384u, 4096u}, {65536u, 1024u}}) {
    const std::size_t slots = std::size_t{count} * 5 / 4;
    if (slots * size > bytes_) continue;
    std::vector<std::uint32_t> read_at(slots), written_at(slots);
    std::iota(read_at.begin(), read_at.end(), 0);
    std::iota(written_at.begin(), written_at.end(), 0);
    std::shuffle(read_at.begin(), read_at.end(), random);
    std::shuffle(written_at.begin(), written_at.end(), random);
    fill(sender, 0, slots * size, size + count);
    std::vector<dma::block> blocks;
    const std::uint64_t target = pulls ? receiver.own.address() : peer.address();
    const std::uint64_t origin = pulls ? peer.address() : sender.own.address();
    for (unsigned i = 0; i < count; ++i)
      blocks.push_back({target + std::uint64_t{written_at[i]} * size, origin + std::uint64_t{read_at[i]} * size, size});
    const auto found = time(is_quick_ ? 3 : 50, [&] {
      need(queue.wait(need(queue.copy_blocks(blocks, dma::ordering::none_settled), "list"), kTimeoutNs), "wait");
    });
    add("list", method, sender, receiver, size, count, found);
    const auto sent = read(sender, 0, slots * size), got = read(receiver, 0, slots * size);
    bool is_right = true;
    for (unsigned i = 0; i < count && is_right; ++i)
      is_right = std::memcmp(sent.data() + read_at[i] * (size / 4), got.data() + written_at[i] * (size / 4), size) == 0;
    check(is_right, format("%s: a list of %u x %u B", method, count, size));
    if (pulls) continue;
    use(sender);
    add("list", "cuMemcpyPeerAsync", sender, receiver, size, count, time(is_quick_ ? 2 : 10, [&] {
          for (unsigned i = 0; i < count; ++i)
            by_cuda(sender, receiver, std::uint64_t{written_at[i]} * size, std::uint64_t{read_at[i]} * size, size,
                    sender.stream);
          must(cuda_.cuStreamSynchronize(sender.stream), "cuStreamSynchronize");
        }));
  }
}

// The same through the planner, as programs use it: single copies, and blocks by index between two paged memories.
void bench::measure_planner() {
  side &sender = sides[0], &receiver = sides[1];
  use(sender);
  copy::planner::options wanted;
  wanted.channels = copy::channel_use::always;
  auto planner = need(copy::planner::open(cuda_, wanted), "planner");
  need(planner->prepare(0), "planner");
  need(planner->prepare(1), "planner");
  for (const std::uint64_t bytes : {64ull, 4096ull, 65536ull, 1ull << 20, 64ull << 20}) {
    if (bytes > bytes_) continue;
    for (const auto& [name, option] : {std::pair{"planner by channel", copy::choice{copy::method::dma_channel, 1}},
                                       {"planner by CUDA", copy::choice{copy::method::copy_engine, 1}}})
      add("planner", name, sender, receiver, bytes, 1,
          time(is_quick_            ? 3
               : bytes > (1u << 20) ? 20
                                    : 500,
               [&] {
                 need(planner->copy_by(option, {copy::direction::on_device, receiver.memory, sender.memory, bytes}), "copy");
               }));
  }
  for (const auto& [size, count] : {std::pair<std::size_t, std::size_t>{16384, 1024}, {16384, 4096}}) {
    const std::size_t slots = count * 5 / 4;
    if (slots * size > bytes_) continue;
    std::vector<std::int64_t> read_at(slots), written_at(slots);
    std::iota(read_at.begin(), read_at.end(), 0);
    std::iota(written_at.begin(), written_at.end(), 0);
    std::mt19937_64 random(5);
    std::shuffle(read_at.begin(), read_at.end(), random);
    std::shuffle(written_at.begin(), written_at.end(), random);
    for (const bool is_back : {false, true}) {
      side &giver = is_back ? receiver : sender, &taker = is_back ? sender : receiver;
      fill(giver, 0, slots * size, static_cast<std::uint32_t>(count) + is_back);
      const std::vector<std::uint64_t> target{taker.memory}, origin{giver.memory};
      const copy::block_transfer blocks{copy::direction::on_device,
                                        {target, slots * size, size, copy::block_indices(written_at.data())},
                                        {origin, slots * size, size, copy::block_indices(read_at.data())},
                                        size,
                                        count};
      add("blocks", "copy_blocks", giver, taker, size, count,
          time(is_quick_ ? 3 : 50, [&] { need(planner->copy_blocks(blocks), "copy_blocks"); }));
      const auto sent = read(giver, 0, slots * size), got = read(taker, 0, slots * size);
      bool is_right = true;
      for (std::size_t i = 0; i < count && is_right; ++i)
        is_right = std::memcmp(sent.data() + static_cast<std::size_t>(read_at[i]) * (size / 4),
                               got.data() + static_cast<std::size_t>(written_at[i]) * (size / 4), size) == 0;
      check(is_right, format("copy_blocks of %zu x %zu B", count, size));
    }
  }
  const auto counts = planner->counts();
  check(counts.copies[static_cast<std::size_t>(copy::method::dma_channel)] > 0, "nothing went by a channel");
}

// Every GPU sends to each other one at the same time.
void bench::measure_all_at_once() {
  struct flow {
    side *sender, *receiver;
    dma::region far;
    std::unique_ptr<dma::channel> queue;
  };
  const std::size_t piece = bytes_ / 4;
  std::vector<flow> flows;
  for (side& sender : sides)
    for (side& receiver : sides)
      if (&sender != &receiver) flows.push_back({&sender, &receiver, bind(sender, receiver), open(sender)});
  const auto total = [&](const times& found) { return static_cast<double>(piece * flows.size()) / found.p50 / 1e3; };
  const auto by_channel = time(is_quick_ ? 3 : 30, [&] {
    std::vector<dma::sequence> numbers;
    for (const auto& one : flows)
      numbers.push_back(need(
          one.queue->copy(one.far.address() + bytes_ / 2, one.sender->own.address(), piece, dma::ordering::none_settled),
          "copy"));
    for (std::size_t i = 0; i < flows.size(); ++i) need(flows[i].queue->wait(numbers[i], kTimeoutNs), "wait");
  });
  const auto cuda = time(is_quick_ ? 3 : 30, [&] {
    for (const auto& one : flows) {
      use(*one.sender);
      by_cuda(*one.sender, *one.receiver, bytes_ / 2, 0, piece, one.sender->stream);
    }
    for (const auto& one : flows) {
      use(*one.sender);
      must(cuda_.cuStreamSynchronize(one.sender->stream), "cuStreamSynchronize");
    }
  });
  for (const auto& [name, found] : {std::pair{"push", by_channel}, {"cuMemcpyPeerAsync", cuda}}) {
    std::printf("all pairs at once, %zu flows of %zu MiB, %s: %.1f GB/s in sum\n", flows.size(), piece >> 20, name,
                total(found));
    file.add_row({{"kind", "all pairs"},
                  {"method", name},
                  {"flows", flows.size()},
                  {"bytes", piece},
                  {"p50_us", found.p50},
                  {"gb_per_s", total(found)}});
  }
}

// After the word the CPU reads the receiver's memory through BAR1 at once. `is_loaded`: beside CUDA's copies both ways.
void bench::check_words(side& sender, side& receiver, bool is_loaded) {
  const auto far = bind(sender, receiver);
  const auto queue = open(sender);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> load;
  if (is_loaded)
    for (int way = 0; way < 2; ++way)
      load.emplace_back([&, way] {
        side &giver = way == 0 ? sender : receiver, &taker = way == 0 ? receiver : sender;
        use(giver);
        while (!is_over.load()) {
          for (int i = 0; i < 8; ++i) by_cuda(giver, taker, bytes_ / 2, bytes_ / 4, bytes_ / 8, giver.other_stream);
          must(cuda_.cuStreamSynchronize(giver.other_stream), "cuStreamSynchronize");
        }
      });
  constexpr std::uint64_t kSizes[] = {4, 64, 256, 1024, 4096, 16384, 65536, 262144};
  constexpr unsigned kSlots = 16;
  constexpr std::uint64_t kSlotBytes = 1u << 20;
  for (unsigned slot = 0; slot < kSlots; ++slot) {
    use(sender);
    must(cuda_.cuMemsetD32_v2(sender.memory + slot * kSlotBytes, 0x5000 + slot, kSlotBytes / 4), "cuMemsetD32");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  for (const auto& [name, order] : {std::pair{"unsettled", dma::ordering::none},
                                    {"settled", dma::ordering::none_settled},
                                    {"flushed", dma::ordering::none_flushed}}) {
    std::mt19937 random(9);
    std::uint64_t early = 0, copies = 0;
    const std::uint64_t end_ns = monotonic_ns() + (is_quick_ ? 50'000'000 : 4'000'000'000);
    for (unsigned i = 0; monotonic_ns() < end_ns; ++i) {
      const std::uint64_t bytes = kSizes[i % std::size(kSizes)];
      const unsigned slot = random() % kSlots;
      const std::uint64_t place = std::uint64_t{random() % (kViewBytes / kSlotBytes)} * kSlotBytes;
      need(queue->wait(
               need(queue->copy(far.address() + place, sender.own.address() + slot * kSlotBytes, bytes, order), "copy"),
               kTimeoutNs),
           "wait");
      const auto* const words = reinterpret_cast<const volatile std::uint32_t*>(receiver.view + place);
      const std::uint32_t wanted = 0x5000 + slot;
      const std::uint32_t last = words[bytes / 4 - 1], first = words[0], some = words[random() % (bytes / 4)];
      early += last != wanted || first != wanted || some != wanted ? 1 : 0;
      ++copies;
    }
    std::printf("words %d->%d %s, %s: %llu of %llu copies whose bytes came later\n", sender.ordinal, receiver.ordinal, name,
                is_loaded ? "beside copies both ways" : "idle", (unsigned long long)early, (unsigned long long)copies);
    file.add_row({{"kind", "words"},
                  {"method", name},
                  {"from", sender.ordinal},
                  {"to", receiver.ordinal},
                  {"is_loaded", is_loaded},
                  {"copies", copies},
                  {"late", early}});
    check(early == 0 || order == dma::ordering::none, format("%s: bytes behind their word", name));
  }
  is_over = true;
  for (auto& one : load) one.join();
}

}  // namespace

int main(int argc, char** argv) {
  const auto driver = cu::driver();
  if (!driver) return std::printf("FAILED: %s\n", driver.error().message.c_str()), 1;
  const bool is_quick = argc > 2 && std::string(argv[2]) == "quick";
  bench all(**driver, is_quick);
  if (!all.set_up()) return 0;
  for (std::size_t i = 0; i < all.sides.size(); ++i)
    for (std::size_t k = 0; k < all.sides.size(); ++k)
      if (i != k && (i == 0 || k == 0)) all.measure_pair(all.sides[i], all.sides[k]);
  all.measure_planner();
  all.measure_all_at_once();
  for (const bool is_loaded : {false, true}) all.check_words(all.sides[0], all.sides[1], is_loaded);
  all.file.set_pass(failures == 0);
  if (argc > 1)
    if (status done = all.file.write(argv[1]); !done) std::printf("FAILED: %s\n", done.error().message.c_str());
  std::printf("%s\n", failures == 0 ? "all right" : "WRONG results above");
  return failures == 0 ? 0 : 1;
}
