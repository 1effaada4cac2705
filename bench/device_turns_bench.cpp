// SPDX-License-Identifier: Apache-2.0
// Why two processes that post into rings of one GPU wait for each other: what a put of this process takes while another one
//   nothing   has no GPU work at all
//   kernel    has a kernel that stays and polls: turns of kernels
//   same      has an idle ring on the same copy engine: turns of the engine
//   other     has one on another engine
//   yields    has one on the same engine that gives it away while it waits
//   slice N   has one on the same engine, and both have a time slice of N us
// each with puts one after the other in one launch (a burst, which holds the engine) and with single puts 3 ms apart, as in
// an exchange: only these must win the engine back each time. Turns of kernels slow `kernel` alone; turns of the engine slow
// `same` alone; a thread of the host that sleeps slows all of them, `nothing` too.
//   device_turns_bench [out.json]
// Exit code 1 if a put fails. Times are of the GPU's clock, per put.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "bench/device_process.hpp"
#include "device/session.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 1u << 20;
constexpr unsigned kBurst = 2000, kSingle = 200;
constexpr auto kDriversSlice = dma::device_ring_options::kDriversTimeslice;
constexpr const char* kScenes[] = {"nothing",  "kernel",   "same",     "other",   "yields",  "slice 200",
                                   "slice 50", "slice 20", "slice 10", "slice 5", "slice 2", "slice 1"};

// CUDA and the kernels, in either process.
struct process : device_process {
  cu::device_ptr memory = 0;

  process() {
    must(cuda.cuMemAlloc_v2(&memory, 4 * kBytes), "cuMemAlloc");
    must(cuda.cuMemsetD8_v2(memory, 0, 4 * kBytes), "cuMemsetD8");
    must(cuda.cuCtxSynchronize(), "cuMemsetD8");
  }
};

device::session_options options_of(const std::string& scene) {
  device::session_options wanted;
  wanted.backend = device::ring_backend::channels;
  wanted.first_engine = scene == "other" ? 1 : 0;
  wanted.ring.yields = scene == "yields";
  const bool is_slice = scene.starts_with("slice ");
  wanted.ring.timeslice_us = is_slice ? static_cast<std::uint32_t>(std::stoul(scene.substr(6))) : kDriversSlice;
  return wanted;
}

// The other process: takes a scene's number, sets it up, answers, and ends it with the next byte.
[[noreturn]] void be_neighbor(int socket) {
  const process self;
  for (char scene = 0; read(socket, &scene, 1) == 1;) {
    const std::string name = kScenes[static_cast<std::size_t>(scene)];
    std::unique_ptr<device::session> session;
    if (name == "kernel") self.launch("busy", 1, 1, std::uint64_t{self.memory}, std::uint64_t{self.memory + 8});
    else if (name != "nothing") session = must(device::session::open(self.cuda, options_of(name)), "a ring");
    if (write(socket, &scene, 1) != 1 || read(socket, &scene, 1) != 1) break;
    const std::uint32_t end = 1;
    if (name == "kernel") {
      cu::stream_t second = nullptr;
      must(self.cuda.cuStreamCreate(&second, 1), "cuStreamCreate");
      must(self.cuda.cuMemcpyHtoDAsync_v2(self.memory, &end, sizeof end, second), "ending the kernel");
      must(self.cuda.cuStreamSynchronize(self.stream), "busy");
      must(self.cuda.cuMemsetD8_v2(self.memory, 0, 4), "cuMemsetD8");
    }
    session.reset();
    if (write(socket, &scene, 1) != 1) break;
  }
  _exit(0);
}

class poster {
 public:
  explicit poster(int socket) : socket_(socket) {
    open("nothing");
    find_clock();
    machine_facts facts = describe_host();
    describe_gpu(facts, self_.cuda, 0);
    file.set_machine(facts);
  }

  void measure(std::size_t scene) {
    const std::string name = kScenes[scene];
    if (name.starts_with("slice")) {
      open(name);
      report(name + " alone", "burst", puts(kBurst));
    }
    tell(static_cast<char>(scene));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    report(name, "burst", puts(kBurst));
    std::vector<double> single;
    for (unsigned i = 0; i < kSingle; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      single.push_back(puts(1).front());
    }
    report(name, "single", single);
    tell(0);
  }
  result_file file{"device_turns_bench", {"device_turns_bench"}};

 private:
  void open(const std::string& scene) {
    session_.reset();
    auto wanted = options_of(scene);
    wanted.first_engine = 0;
    wanted.ring.yields = false;
    session_ = must(device::session::open(self_.cuda, wanted), "opening a session");
    source_ = must(session_->add_window(self_.memory, kBytes), "add_window");
    target_ = must(session_->add_window(self_.memory + kBytes, kBytes), "add_window");
    words_ = must(session_->add_window(self_.memory + 2 * kBytes, 4096), "add_window");
  }
  void tell(char byte) const {
    if (write(socket_, &byte, 1) != 1 || read(socket_, &byte, 1) != 1) give_up("the other process is gone");
  }
  void find_clock() {
    self_.launch("count_cycles", 1, 1, std::uint64_t{50'000'000}, std::uint64_t{self_.memory + 3 * kBytes});
    must(self_.cuda.cuStreamSynchronize(self_.stream), "count_cycles");
    std::uint64_t counts[2] = {};
    must(self_.cuda.cuMemcpyDtoH_v2(counts, self_.memory + 3 * kBytes, sizeof counts), "cuMemcpyDtoH");
    cycles_per_us_ = static_cast<double>(counts[0]) / static_cast<double>(counts[1]) * 1e3;
    std::printf("%.0f cycles a microsecond\n", cycles_per_us_);
  }
  std::vector<double> puts(unsigned rounds) {
    const std::uint64_t answers = self_.memory + 3 * kBytes;
    self_.launch("time_puts", 1, 1, session_->ring(0).handle(), target_, source_, std::uint64_t{64}, words_, next_, rounds,
                 0u, answers);
    must(self_.cuda.cuStreamSynchronize(self_.stream), "time_puts");
    next_ += rounds;
    std::vector<std::int64_t> cycles(rounds);
    must(self_.cuda.cuMemcpyDtoH_v2(cycles.data(), answers, rounds * 8), "cuMemcpyDtoH");
    std::vector<double> out;
    for (const auto one : cycles) {
      if (one < 0) give_up("a put was answered with " + std::to_string(one));
      out.push_back(static_cast<double>(one) / cycles_per_us_);
    }
    return out;
  }
  void report(const std::string& scene, const char* form, std::vector<double> us) {
    std::sort(us.begin(), us.end());
    const double mean = std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
    const auto quantile = [&](double part) {
      return us[static_cast<std::size_t>(part * static_cast<double>(us.size() - 1))];
    };
    std::printf("%-15s %-7s mean %9.2f us  p50 %9.2f  p99 %9.2f  longest %9.2f\n", scene.c_str(), form, mean, quantile(0.5),
                quantile(0.99), us.back());
    std::fflush(stdout);
    file.add_row({{"kind", "turns"},
                  {"other_process", scene},
                  {"puts", form},
                  {"put_us_mean", mean},
                  {"put_us_p50", quantile(0.5)},
                  {"put_us_p99", quantile(0.99)},
                  {"put_us_max", us.back()}});
  }

  const process self_;
  const int socket_;
  std::unique_ptr<device::session> session_;
  peerlane_device_window source_{}, target_{}, words_{};
  double cycles_per_us_ = 1;
  unsigned next_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto cuda = cu::driver(); !cuda) give_up(cuda.error().message);
  int sockets[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) give_up("socketpair");
  const pid_t neighbor = fork();  // before CUDA in either process
  if (neighbor == 0) {
    close(sockets[0]);
    be_neighbor(sockets[1]);
  }
  close(sockets[1]);
  {
    poster run(sockets[0]);
    for (std::size_t scene = 0; scene < std::size(kScenes); ++scene) run.measure(scene);
    if (argc > 1)
      if (status done = run.file.write(argv[1]); !done) give_up(done.error().message);
  }
  close(sockets[0]);
  int outcome = 0;
  return waitpid(neighbor, &outcome, 0) == neighbor && outcome == 0 ? 0 : 1;
}
