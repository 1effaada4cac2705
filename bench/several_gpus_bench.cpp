// SPDX-License-Identifier: Apache-2.0
// Two processes of an elastic job, each with memory of the host and of every GPU: messages between any two of their
// memories, compared and timed there and back. Then one process kills itself while the other's message is on its way to it,
// comes back as a new process, and everything is done again.
//
//   several_gpus_bench [--cycles N] [--rounds N] [--json FILE]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <peerlane/communicator.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "cuda/driver_table.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"

namespace pl {
namespace {

constexpr std::chrono::milliseconds kLimit{30'000};
constexpr std::size_t kSizes[] = {8, 4096, 65536, 4u << 20, 64u << 20};
constexpr std::size_t kMaxBytes = 64u << 20;

struct settings {
  int cycles = 3, rounds = 200;
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

// Memory of the host (0) or of GPU place - 1.
class place {
 public:
  explicit place(int number) : number_(number) {
    if (number == 0) {
      host_.resize(kMaxBytes);
      return;
    }
    need(cuda_.cuDevicePrimaryCtxRetain(&context_, number - 1), "cuDevicePrimaryCtxRetain");
    need(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    need(cuda_.cuMemAlloc_v2(&device_, kMaxBytes), "cuMemAlloc");
  }
  peerlane::buffer part(std::size_t bytes) {
    return number_ == 0 ? peerlane::host_buffer(host_.data(), bytes)
                        : peerlane::device_buffer(reinterpret_cast<void*>(device_), bytes);
  }
  void set(const std::vector<unsigned char>& bytes) {
    if (number_ == 0) return static_cast<void>(std::memcpy(host_.data(), bytes.data(), bytes.size()));
    need(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    need(cuda_.cuMemcpyHtoD_v2(device_, bytes.data(), bytes.size()), "cuMemcpyHtoD");
    // (Short copies of pageable memory return before they are there, and would overwrite a message.)
    need(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  bool holds(const std::vector<unsigned char>& bytes) {
    if (number_ == 0) return std::memcmp(host_.data(), bytes.data(), bytes.size()) == 0;
    std::vector<unsigned char> out(bytes.size());
    need(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    need(cuda_.cuMemcpyDtoH_v2(out.data(), device_, out.size()), "cuMemcpyDtoH");
    return out == bytes;
  }

 private:
  const cu::driver_table& cuda_ = **cu::driver();
  const int number_;
  std::vector<unsigned char> host_;
  cu::context_t context_ = nullptr;
  cu::device_ptr device_ = 0;
};

std::string name_of(int number) { return number == 0 ? "host" : "GPU " + std::to_string(number - 1); }

std::vector<unsigned char> bytes_of(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> out(size);
  for (auto& one : out) one = static_cast<unsigned char>(random());
  return out;
}

// From memory `mine` to the peer's `theirs` and back; microseconds one way, the median.
double exchange(const peerlane::communicator& comm, place& mine, place& theirs, std::size_t size, int rounds,
                unsigned seed) {
  const bool begins = comm.rank() == 0;
  const auto wanted = bytes_of(size, seed);
  place& used = begins ? mine : theirs;
  used.set(begins ? wanted : std::vector<unsigned char>(size));
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t begin = monotonic_ns();
    if (begins) need(comm.send(1, used.part(size), 1, kLimit));
    (void)take(comm.recv(1 - comm.rank(), used.part(size), 1, peerlane::whole_tag, kLimit));
    if (!begins) need(comm.send(0, used.part(size), 1, kLimit));
    times.push_back(static_cast<double>(monotonic_ns() - begin) / 2000);
    if (round == 0 && !used.holds(wanted)) die("wrong bytes: " + std::to_string(size) + " of them");
  }
  if (!used.holds(wanted)) die("wrong bytes after the last round");
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void be(int rank, const settings& asked, const std::string& meeting) {
  must(cu::initialize(**cu::driver()));
  int gpus = 0;
  need((*cu::driver())->cuDeviceGetCount(&gpus), "cuDeviceGetCount");
  std::vector<std::unique_ptr<place>> places;
  for (int i = 0; i <= gpus; ++i) places.push_back(std::make_unique<place>(i));
  auto options = peerlane::communicator::options();
  options.rendezvous = meeting.c_str();
  options.rank = rank;
  options.size = 2;
  options.elastic = PEERLANE_YES;
  const auto comm = take(peerlane::communicator::open(&options));
  result_file out("several_gpus_bench", asked.command_line);
  out.set_machine(describe_host());
  const int first = static_cast<int>(take(comm.incarnation(1))) - 1;
  for (int cycle = first; cycle < asked.cycles; ++cycle) {
    for (int mine = 0; mine <= gpus; ++mine)
      for (int theirs = 0; theirs <= gpus; ++theirs)
        for (const std::size_t size : kSizes) {
          const int rounds = size >= (4u << 20) ? std::max(asked.rounds / 10, 3) : asked.rounds;
          const double us =
              exchange(comm, *places[static_cast<std::size_t>(mine)], *places[static_cast<std::size_t>(theirs)], size,
                       rounds, static_cast<unsigned>(cycle * 1000 + mine * 100 + theirs * 10) + 1);
          if (rank != 0) continue;
          std::printf("process %d  %-6s to %-6s %9zu bytes %9.2f us\n", cycle + 1, name_of(mine).c_str(),
                      name_of(theirs).c_str(), size, us);
          out.add_row({{"kind", "message"},
                       {"process", cycle + 1},
                       {"source", name_of(mine)},
                       {"destination", name_of(theirs)},
                       {"bytes", size},
                       {"one_way_us_p50", us},
                       {"rounds", rounds}});
        }
    if (cycle + 1 == asked.cycles) break;
    if (rank == 1) {
      auto lost = comm.irecv(0, places.back()->part(kMaxBytes), 2);
      (void)take(comm.recv(0, places[0]->part(1), 3, peerlane::whole_tag, kLimit));
      raise(SIGKILL);
    }
    const std::uint64_t begin = monotonic_ns();
    auto back = take(comm.await_return());
    need(comm.send(1, places[0]->part(1), 3, kLimit));
    const auto sent = comm.send(1, places.back()->part(kMaxBytes), 2, kLimit);  // into a process that dies
    take(back.wait(kLimit));
    const double ms = static_cast<double>(monotonic_ns() - begin) / 1e6;
    std::printf("process %d was killed (%s); the next one is back after %.0f ms\n", cycle + 1,
                sent ? "its last message had left" : "its last message ended with an error", ms);
    out.add_row({{"kind", "return"}, {"process", cycle + 2}, {"back_ms", ms}});
  }
  if (rank == 0 && !asked.json.empty()) must(out.write(asked.json));
}

int run(int argc, char** argv) {
  settings asked;
  asked.command_line.assign(argv, argv + argc);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--cycles") asked.cycles = std::max(std::atoi(argv[i + 1]), 1);
    else if (name == "--rounds") asked.rounds = std::max(std::atoi(argv[i + 1]), 1);
    else if (name == "--json") asked.json = argv[i + 1];
    else die("unknown option " + name);
  }
  const std::string meeting = "127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
  const auto start = [&](int rank) {
    const pid_t child = fork();
    if (child != 0) return child;
    be(rank, asked, meeting);
    std::fflush(nullptr);
    std::exit(0);
  };
  pid_t ranks[] = {start(0), start(1)};
  for (int left = 2, state = 0; left > 0;) {
    const pid_t ended = wait(&state);
    if (ended == ranks[1] && WIFSIGNALED(state)) {
      ranks[1] = start(1);
      continue;
    }
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) return 1;
    --left;
  }
  return 0;
}

}  // namespace
}  // namespace pl

int main(int argc, char** argv) { return pl::run(argc, argv); }
