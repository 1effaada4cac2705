// SPDX-License-Identifier: Apache-2.0
// Kernels of two processes that answer each other by puts into remote windows, as between two hosts: right, then how fast,
// beside the same bytes by messages of GPU memory, alone and with a launch and a synchronisation before each. One GPU for
// each process, in turns if the machine has fewer (kernels that wait for each other then share one: nothing is measured).
//
//     device_remote_bench [--rounds N] [--turns N] [--json FILE]
//
// PEERLANE_LINK_PATH=network makes the processes of one machine use UCX, as two hosts do. Exit code 1 if anything is wrong,
// 0 without two GPUs.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <peerlane/communicator.hpp>
#include <peerlane/device.hpp>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "bench/must.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/kernel_image.hpp"
#include "device_peer_kernels_image.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"

namespace pl {
namespace {

constexpr std::chrono::milliseconds kLimit{30'000};
constexpr std::size_t kSizes[] = {8, 128, 1024, 8192, 65536, 1u << 20};
constexpr std::size_t kMaxBytes = 1u << 20, kWordsBytes = 4096;
constexpr unsigned kThreads = 32;
enum arm { kernels_put, messages_alone, messages_and_launches, kArms };
constexpr const char* kNames[kArms] = {"put_signal of kernels", "messages", "messages, launches"};

struct settings {
  int rounds = 300, turns = 5;
  std::string json;
  std::vector<std::string> command_line;
};

template <class T>
T take(peerlane::result<T> got) {
  if (!got) die(got.error().message);
  return *std::move(got);
}
void need(const peerlane::status& done) {
  if (!done) die(done.error().message);
}
void need(cu::result_t code, const char* call) {
  if (code != cu::error_code::success) die(call + std::string(": ") + cu::error_text(**cu::driver(), code));
}

// Memory of this process that the other one writes, and the other's for our kernels.
struct shared_memory {
  cu::device_ptr address = 0;
  peerlane::window exposed;
  peerlane::device_window own{}, theirs{};
};

class process {
 public:
  process(int rank, const settings& wanted, const std::string& meeting)
      : rank_(rank), wanted_(wanted), comm_(join(meeting)), rings_(open_rings()) {
    open_memory(bytes_, kMaxBytes);
    open_memory(words_, kWordsBytes);
    source_address_ = allocate(kMaxBytes);
    result_ = allocate(64);
    source_ = take(rings_.add_window(peerlane::device_buffer(source_address_, kMaxBytes)));
    need(cuda_.cuStreamCreate(&stream_, cu::stream_flag::non_blocking), "cuStreamCreate");
    const auto module = must(cu::load_kernels(cuda_, kernels::device_peer_kernels()));
    need(cuda_.cuModuleGetFunction(&function_, module, "answer_peer"), "cuModuleGetFunction");
  }

  // Nanoseconds of a round trip, the mean of all rounds.
  double measure(arm method, std::size_t bytes, int rounds, bool checks = false) {
    need(comm_.barrier(kLimit));
    if (method == kernels_put) return by_kernels(bytes, rounds, checks);
    const std::uint64_t begin_ns = monotonic_ns();
    for (int i = 0; i < rounds; ++i) {
      if (rank_ == 0) send(bytes, method);
      (void)take(comm_.recv(1 - rank_, peerlane::device_buffer(bytes_.address, bytes), 1, peerlane::whole_tag, kLimit));
      if (rank_ == 1) send(bytes, method);
    }
    return static_cast<double>(monotonic_ns() - begin_ns) / rounds;
  }
  const cu::driver_table& cuda() const { return cuda_; }
  void finish() {
    need(comm_.barrier(kLimit));
    need(rings_.state()->outcome);
    need(rings_.release_window(bytes_.theirs));
    need(rings_.release_window(words_.theirs));
    need(comm_.barrier(kLimit));
  }

 private:
  peerlane::communicator join(const std::string& meeting) {
    must(cu::initialize(cuda_));
    cu::context_t context = nullptr;
    need(cuda_.cuDevicePrimaryCtxRetain(&context, rank_), "cuDevicePrimaryCtxRetain");
    need(cuda_.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    auto options = peerlane::communicator::options();
    options.rendezvous = meeting.c_str();
    options.rank = rank_;
    options.size = 2;
    options.progress_thread = PEERLANE_YES;
    return take(peerlane::communicator::open(&options));
  }
  peerlane::device_rings open_rings() const {
    peerlane::device_options options;
    options.device_ordinal = rank_;
    options.by_proxy = true;
    options.timeout = std::chrono::seconds(20);
    return take(peerlane::device_rings::open(options));
  }
  cu::device_ptr allocate(std::size_t bytes) {
    cu::device_ptr address = 0;
    need(cuda_.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    need(cuda_.cuMemsetD8_v2(address, 0, bytes), "cuMemsetD8");
    need(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
    return address;
  }
  void open_memory(shared_memory& one, std::size_t bytes) {
    one.address = allocate(bytes);
    const auto memory = peerlane::device_buffer(one.address, bytes);
    one.exposed = take(comm_.expose(memory));
    const auto keys = take(comm_.all_gather(one.exposed.key()));
    one.own = take(rings_.add_window(memory));
    one.own.address = one.address;  // kernels read what has come
    one.theirs = take(rings_.add_remote_window(comm_.get(), keys[static_cast<std::size_t>(1 - rank_)]));
  }
  void launch(std::uint64_t bytes, unsigned rounds, bool checks) {
    auto ring = take(rings_.ring());
    unsigned second = static_cast<unsigned>(rank_), mode = 0, verifies = checks ? 1 : 0;
    void* parameters[] = {&ring,  &bytes_.theirs, &source_, &bytes_.own, &bytes,    &words_.theirs, &words_.own,
                          &next_, &rounds,        &second,  &mode,       &verifies, &result_};
    need(cuda_.cuLaunchKernel(function_, 1, 1, 1, kThreads, 1, 1, 0, stream_, parameters, nullptr), "cuLaunchKernel");
    need(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }
  double by_kernels(std::size_t bytes, int rounds, bool checks) {
    need(cuda_.cuMemsetD8_v2(result_, 0, 64), "cuMemsetD8");
    need(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
    launch(bytes, static_cast<unsigned>(rounds), checks);
    next_ += static_cast<unsigned>(rounds);
    std::uint64_t found[3] = {};
    need(cuda_.cuMemcpyDtoH_v2(found, result_, sizeof found), "cuMemcpyDtoH");
    if (found[2] != 0) die("a kernel was told " + std::to_string(static_cast<long long>(found[2])));
    if (found[1] != 0) die(std::to_string(found[1]) + " words were old");
    return static_cast<double>(found[0]) / rounds;
  }
  // The bytes that a kernel of no work has left, if a launch belongs to it.
  void send(std::size_t bytes, arm method) {
    if (method == messages_and_launches) launch(bytes, 0, false);
    need(comm_.send(1 - rank_, peerlane::device_buffer(source_address_, bytes), 1, kLimit));
  }

  const int rank_;
  const settings& wanted_;
  const cu::driver_table& cuda_ = **cu::driver();
  peerlane::communicator comm_;
  peerlane::device_rings rings_;
  shared_memory bytes_, words_;
  cu::device_ptr source_address_ = 0, result_ = 0;
  peerlane::device_window source_{};
  cu::stream_t stream_ = nullptr;
  cu::function_t function_ = nullptr;
  unsigned next_ = 1;
};

void be(int rank, const settings& wanted, const std::string& meeting) {
  process self(rank, wanted, meeting);
  result_file out("device_remote_bench", wanted.command_line);
  machine_facts facts = describe_host();
  describe_gpu(facts, self.cuda(), rank);
  out.set_machine(facts);
  for (const std::size_t bytes : kSizes) {
    self.measure(kernels_put, bytes, std::max(wanted.rounds / 3, 10), true);
    std::vector<double> took_ns[kArms];
    for (int turn = 0; turn < wanted.turns; ++turn)
      for (int method = 0; method < kArms; ++method) {
        const int rounds = bytes >= 65536 ? std::max(wanted.rounds / 5, 10) : wanted.rounds;
        took_ns[method].push_back(self.measure(static_cast<arm>(method), bytes, rounds) / 2);
      }
    if (rank != 0) continue;
    for (int method = 0; method < kArms; ++method) {
      auto& sorted = took_ns[method];
      std::sort(sorted.begin(), sorted.end());
      const double middle = quantile_of_sorted(sorted, 0.5), least = sorted.front(), most = sorted.back();
      std::printf("%8zu B  %-22s %9.2f us (%.2f to %.2f)\n", bytes, kNames[method], middle / 1e3, least / 1e3, most / 1e3);
      out.add_row({{"kind", "latency"},
                   {"method", kNames[method]},
                   {"bytes", bytes},
                   {"turns", wanted.turns},
                   {"rounds", wanted.rounds},
                   {"half_round_trip_ns_p50", middle},
                   {"half_round_trip_ns_min", least},
                   {"half_round_trip_ns_max", most}});
    }
    std::fflush(stdout);
  }
  self.finish();
  out.set_pass(true);
  if (rank == 0 && !wanted.json.empty()) must(out.write(wanted.json));
}

// Asked in a process of its own: CUDA is not used on both sides of a fork.
int gpus() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const auto cuda = cu::driver();
    _exit(cuda && cu::initialize(**cuda) && (*cuda)->cuDeviceGetCount(&count) == 0 ? count : 0);
  }
  int state = 0;
  return waitpid(child, &state, 0) == child && WIFEXITED(state) ? WEXITSTATUS(state) : 0;
}

int run(int argc, char** argv) {
  settings wanted;
  wanted.command_line.assign(argv, argv + argc);
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) die(name + " needs a value");
    if (name == "--rounds") wanted.rounds = std::max(std::atoi(argv[i + 1]), 10);
    else if (name == "--turns") wanted.turns = std::max(std::atoi(argv[i + 1]), 1);
    else if (name == "--json") wanted.json = argv[i + 1];
    else die("unknown option " + name);
  }
  if (gpus() < 2) return std::printf("no two GPUs\n"), 0;
  const std::string meeting = "127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
  for (int rank = 0; rank < 2; ++rank) {
    if (fork() != 0) continue;
    be(rank, wanted, meeting);
    std::fflush(nullptr);
    std::exit(0);
  }
  int failed = 0;
  for (int left = 2, state = 0; left > 0; --left)
    if (wait(&state) < 0 || !WIFEXITED(state) || WEXITSTATUS(state) != 0) failed = 1;
  return failed;
}

}  // namespace
}  // namespace pl

int main(int argc, char** argv) { return pl::run(argc, argv); }
