// SPDX-License-Identifier: Apache-2.0
// Kernels of one process put into GPU memory of another, which handed it over by a descriptor (device/session.hpp).
//   device_neighbor_bench [out.json]
// 1. Puts of random sizes by many threads; the owner compares every byte.
// 2. Latency of put_signal into that memory, beside the same into memory of the own process.
// 3. The owner is killed while puts are under way: all of them still succeed, as the memory outlives its owner.
// 4. The window is released: a put into it ends its ring with EIO, and a ring beside it goes on.
// Exit code 1 if anything is otherwise.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "bench/device_process.hpp"
#include "device/session.hpp"
#include "measure/result_file.hpp"
#include "measure/samples.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 64u << 20, kWordsBytes = 2u << 20;
constexpr unsigned kBlocks = 16, kThreads = 128, kRounds = 2000;
constexpr std::size_t kAnswers = 1u << 16;

std::uint32_t word(std::size_t index) { return static_cast<std::uint32_t>(index * 2654435761u + 12345u); }

// CUDA, the kernels and two rings, in either process.
struct process : device_process {
  std::unique_ptr<device::session> session;

  process() {
    device::session_options wanted;
    wanted.rings = 2;
    wanted.ring.timeout_ns = 2'000'000'000;
    session = must(device::session::open(cuda, wanted), "opening a session");
  }
  cu::device_ptr allocate(std::size_t bytes) const {
    cu::device_ptr out = 0;
    must(cuda.cuMemAlloc_v2(&out, bytes), "cuMemAlloc");
    must(cuda.cuMemsetD8_v2(out, 0xEE, bytes), "cuMemsetD8");
    return out;
  }
  void finish() const { must(cuda.cuStreamSynchronize(stream), "kernels"); }
};

// Hands its memory over, looks at it when told, and waits to be killed.
[[noreturn]] void own(int socket) {
  const process self;
  const cu::device_ptr memory = self.allocate(kBytes);
  must(self.cuda.cuCtxSynchronize(), "cuMemsetD8");
  const auto window = must(self.session->add_window(memory, kBytes), "add_window");
  if (status sent = dma::send_region(socket, must(self.session->share(window), "share")); !sent)
    give_up(sent.error().message);
  char byte = 0;
  if (read(socket, &byte, 1) != 1) give_up("the other process is gone");
  std::vector<std::uint32_t> got(kBytes / 4);
  must(self.cuda.cuMemcpyDtoH_v2(got.data(), memory, kBytes), "cuMemcpyDtoH");
  byte = 1;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != word(i)) byte = 0;
  if (write(socket, &byte, 1) != 1) give_up("the other process is gone");
  for (;;) pause();
}

class user {
 public:
  user(int socket, pid_t owner) : socket_(socket), owner_(owner) {
    memory_ = self_.allocate(kBytes);
    words_memory_ = self_.allocate(kWordsBytes);
    answers_ = self_.allocate(kAnswers * 8);
    std::vector<std::uint32_t> pattern(kBytes / 4);
    for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = word(i);
    must(self_.cuda.cuMemcpyHtoD_v2(memory_, pattern.data(), kBytes), "cuMemcpyHtoD");
    must(self_.cuda.cuMemsetD8_v2(words_memory_, 0, kWordsBytes), "cuMemsetD8");
    must(self_.cuda.cuCtxSynchronize(), "cuMemsetD8");
    source_ = must(self_.session->add_window(memory_, kBytes), "add_window");
    words_ = must(self_.session->add_window(words_memory_, kWordsBytes), "add_window");
    theirs_ = must(self_.session->add_shared(must(dma::receive_region(socket, 10'000), "receive_region")), "add_shared");
  }

  void check_bytes() {
    put_at_random(0);
    const char tell = 1;
    char is_right = 0;
    if (write(socket_, &tell, 1) != 1 || read(socket_, &is_right, 1) != 1) give_up("the owner is gone");
    std::uint64_t puts = 0;
    must(self_.cuda.cuMemcpyDtoH_v2(&puts, words_memory_ + 4096, 8), "cuMemcpyDtoH");
    std::printf("%llu puts of up to 4096 B by %u threads into memory of another process: %s\n",
                static_cast<unsigned long long>(puts), kBlocks * kThreads,
                is_right != 0 ? "every byte right" : "WRONG BYTES");
    note("random", is_right != 0);
    file.add_row({{"kind", "random"}, {"puts", puts}, {"is_right", is_right != 0}});
  }

  // The clock of time_puts counts cycles; both columns have the same, so the ratio needs no unit.
  void time_latency() {
    const auto far = must(self_.session->add_window(self_.allocate(kBytes), kBytes), "add_window");
    std::printf("put_signal, median in clock cycles      own memory   of the other process\n");
    for (const std::uint64_t bytes : {64u, 4096u, 65536u, 1048576u}) {
      const double own = median_cycles(far, bytes), other = median_cycles(theirs_, bytes);
      std::printf("%30llu B %18.0f %18.0f\n", static_cast<unsigned long long>(bytes), own, other);
      file.add_row({{"kind", "latency"}, {"size_bytes", bytes}, {"own_cycles", own}, {"other_cycles", other}});
    }
  }

  void kill_the_owner() {
    std::thread killer([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kill(owner_, SIGKILL);
    });
    unsigned times = 0;
    int outcome = 0;
    bool is_dead = false, is_right = true;
    for (unsigned after = 0; after < 3; after += is_dead ? 1 : 0, ++times) {
      is_right = put_at_random(0) && is_right;
      is_dead = is_dead || waitpid(owner_, &outcome, WNOHANG) == owner_;
    }
    killer.join();
    std::printf("the owner was killed in the middle of %u rounds of puts: %s\n", times,
                is_right ? "all of them ended well" : "ERRORS");
    note("a killed owner", is_right && WIFSIGNALED(outcome));
    file.add_row({{"kind", "killed_owner"}, {"rounds", times}, {"is_right", is_right}});
  }

  void release() {
    if (status gone = self_.session->remove_window(theirs_); !gone) give_up(gone.error().message);
    const std::uint64_t begin_ns = monotonic_ns();
    const bool is_accepted = put_at_random(0);
    const double ms = static_cast<double>(monotonic_ns() - begin_ns) / 1e6;
    const auto state = self_.session->ring(0).read();
    const bool is_eio = !is_accepted && state.reason && state.reason->code == EIO;
    std::printf("puts into the released window: %s after %.1f ms\n",
                state.reason ? state.reason->message.c_str() : "NO ERROR", ms);
    const auto mine = must(self_.session->add_window(self_.allocate(kBytes), kBytes), "add_window");
    theirs_ = mine;
    const bool goes_on = put_at_random(1);
    std::printf("the ring beside it: %s\n", goes_on ? "goes on" : "HAS ENDED TOO");
    note("a released window", is_eio && goes_on);
    file.add_row({{"kind", "released"},
                  {"code", state.reason ? state.reason->code : 0},
                  {"other_ring_goes_on", goes_on},
                  {"ms", ms}});
  }

  bool is_right() const { return is_right_; }
  result_file file{"device_neighbor_bench", {"device_neighbor_bench"}};

 private:
  void note(const char* step, bool is_right) {
    if (!is_right) std::printf("WRONG: %s\n", step);
    is_right_ = is_right_ && is_right;
  }
  bool put_at_random(unsigned index) {
    must(self_.cuda.cuMemsetD8_v2(words_memory_ + 4096, 0, 8), "cuMemsetD8");
    self_.launch("random_puts", kBlocks, kThreads, self_.session->ring(index).handle(), theirs_, source_,
                 std::uint64_t{kBytes / kBlocks / kThreads}, 4096u, std::uint64_t{++seed_},
                 std::uint64_t{words_memory_ + 4096}, std::uint64_t{answers_});
    self_.finish();
    const auto got = read_answers(kBlocks * kThreads);
    return std::all_of(got.begin(), got.end(), [](std::uint64_t one) { return one == 0; });
  }
  double median_cycles(const peerlane_device_window& destination, std::uint64_t bytes) {
    self_.launch("time_puts", 1, 1, self_.session->ring(0).handle(), destination, source_, bytes, words_, next_, kRounds, 0u,
                 std::uint64_t{answers_});
    self_.finish();
    next_ += kRounds;
    auto cycles = read_answers(kRounds);
    std::sort(cycles.begin(), cycles.end());
    if (static_cast<std::int64_t>(cycles.front()) < 0) give_up("time_puts");
    return static_cast<double>(cycles[kRounds / 2]);
  }
  std::vector<std::uint64_t> read_answers(std::size_t count) const {
    std::vector<std::uint64_t> out(count);
    must(self_.cuda.cuMemcpyDtoH_v2(out.data(), answers_, count * 8), "cuMemcpyDtoH");
    return out;
  }

  process self_;
  int socket_;
  pid_t owner_;
  cu::device_ptr memory_ = 0, words_memory_ = 0, answers_ = 0;
  peerlane_device_window source_{}, words_{}, theirs_{};
  unsigned next_ = 1;
  std::uint64_t seed_ = 0;
  bool is_right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto cuda = cu::driver(); !cuda) give_up(cuda.error().message);
  int sockets[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) give_up("socketpair");
  const pid_t owner = fork();  // before CUDA in either process
  if (owner == 0) {
    close(sockets[0]);
    own(sockets[1]);
  }
  close(sockets[1]);
  user run(sockets[0], owner);
  run.check_bytes();
  run.time_latency();
  run.kill_the_owner();
  run.release();
  run.file.set_pass(run.is_right());
  if (argc > 1)
    if (status done = run.file.write(argv[1]); !done) std::printf("FAILED: %s\n", done.error().message.c_str());
  std::printf("%s\n", run.is_right() ? "all right" : "SOMETHING IS WRONG");
  std::fflush(stdout);
  _exit(run.is_right() ? 0 : 1);
}
