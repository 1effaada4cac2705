// SPDX-License-Identifier: Apache-2.0
// Processes that end in the worst moment, each with a DMA channel and without CUDA: killed at each call to the driver while
// they open one and copy, replaced by another program (exec) with copies under way, 16 at once that copy and check, and 16
// killed at once. After each a new channel must work, and no descriptor is left. Whether GPU memory is left over, nvidia-smi
// tells before and after (scripts/gpu/dma.sh).
//
//     dma_kill_bench
//
// Exit code 1 if anything is wrong.
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.hpp"
#include "bench/forwarding_io.hpp"
#include "dma/channel.hpp"

namespace {

using namespace pl;

constexpr std::uint64_t kTimeoutNs = 5'000'000'000;
constexpr std::size_t kBytes = 4u << 20;
constexpr int kProcesses = 16, kMaxSteps = 400;
constexpr useconds_t kKilledAfterUs = 700'000;  // all of them copy by then

// The system's calls; the process kills itself instead of one of them.
class self_killing_io final : public bench::forwarding_io {
 public:
  explicit self_killing_io(int last) : left_(last) {}
  int open(const char* path, int flags) override { return step(), forwarding_io::open(path, flags); }
  int ioctl(int fd, unsigned long request, void* argument) override {
    return step(), forwarding_io::ioctl(fd, request, argument);
  }
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override {
    return step(), forwarding_io::mmap(address, size_bytes, protection, flags, fd, offset);
  }

 private:
  void step() {
    if (left_ >= 0 && left_-- == 0) kill(getpid(), SIGKILL);
  }
  int left_;  // negative: for ever
};

// What a program that replaces this one does: 7 if it has inherited one of the GPU's files.
constexpr const char* kFindDevices =
    "for file in /proc/$$/fd/*; do case $(readlink \"$file\") in /dev/nvidia*) exit 7 ;; esac; done; exit 0";

int count_descriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

std::string first_gpu() {
  std::string found;
  DIR* const folder = opendir("/proc/driver/nvidia/gpus");
  for (const dirent* one = nullptr; folder != nullptr && (one = readdir(folder)) != nullptr;)
    if (one->d_name[0] != '.' && (found.empty() || one->d_name < found)) found = one->d_name;
  if (folder != nullptr) closedir(folder);
  return found;
}

// A channel, and `rounds` copies through GPU memory of its own, each checked. 0: all right.
int copy_and_check(device_io& io, std::uint32_t seed, int rounds, bool leaves_work) {
  auto client = rm::client::open(io);
  if (!client) return std::printf("client: %s\n", client.error().message.c_str()), 2;
  const auto pci = rm::parse_pci_address(first_gpu());
  const auto version = rm::driver_version(io);
  if (!pci || !version) return 2;
  auto gpu = (*client)->find_gpu(*pci);
  if (!gpu) return std::printf("GPU: %s\n", gpu.error().message.c_str()), 2;
  auto space = dma::address_space::open(**client, **gpu, *version);
  if (!space) return std::printf("address space: %s\n", space.error().message.c_str()), 2;
  auto* const words = static_cast<std::uint32_t*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  auto host = (*space)->bind_host(words, kBytes);
  auto device = (*space)->make_device_memory(kBytes);
  auto queue = dma::channel::open(*space, {});
  if (!host || !device || !queue) return std::printf("memory or channel\n"), 2;
  for (int round = 0; round < rounds; ++round) {
    const std::uint32_t pattern = seed * 65536 + static_cast<std::uint32_t>(round);
    auto filled = (*queue)->fill(device->bound.address(), pattern, kBytes);
    auto copied = filled ? (*queue)->copy(host->address(), device->bound.address(), kBytes) : filled;
    if (leaves_work && round + 1 == rounds)
      return execl("/bin/sh", "sh", "-c", kFindDevices, nullptr);  // with both under way
    if (!copied || !(*queue)->wait(*copied, kTimeoutNs)) return std::printf("copy\n"), 2;
    for (std::size_t i = 0; i < kBytes / 4; i += 512)
      if (words[i] != pattern) return std::printf("foreign or old bytes\n"), 3;
  }
  return 0;
}

template <class Run>
int in_child(Run run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  return child;
}

int outcome_of(pid_t child) {
  int state = 0;
  waitpid(child, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

// Opened and closed again and again in one process: the descriptors that are left over, or -1.
int leftover_descriptors() {
  constexpr int kTimes = 20;
  const auto once = [] {
    self_killing_io io(-1);
    return copy_and_check(io, 4, 2, false);
  };
  if (once() != 0) return -1;
  const int before = count_descriptors();
  for (int i = 0; i < kTimes; ++i)
    if (once() != 0) return -1;
  return std::min(count_descriptors() - before, 100);
}

}  // namespace

int main() {
  std::printf("GPU %s\n", first_gpu().c_str());
  int wrong = 0, steps = 0;
  for (; steps < kMaxSteps; ++steps) {
    const int outcome = outcome_of(in_child([steps] {
      self_killing_io io(steps);
      return copy_and_check(io, static_cast<std::uint32_t>(steps), 3, false);
    }));
    if (outcome == 0) break;  // it ended before that call
    wrong += outcome != -SIGKILL;
    const int next = outcome_of(in_child([] {
      self_killing_io io(-1);
      return copy_and_check(io, 1, 1, false);
    }));
    if (next != 0) ++wrong, std::printf("after a process killed at call %d: %d\n", steps, next);
  }
  std::printf("killed at each of %d calls to the driver: a new channel worked each time: %s\n", steps,
              wrong == 0 ? "yes" : "NO");

  int exec_wrong = 0;
  for (int round = 0; round < 20; ++round) {
    exec_wrong += outcome_of(in_child([] {
                    self_killing_io io(-1);
                    return copy_and_check(io, 2, 5, true);
                  })) != 0;
    exec_wrong += outcome_of(in_child([] {
                    self_killing_io io(-1);
                    return copy_and_check(io, 3, 1, false);
                  })) != 0;
  }
  std::printf("20 times exec with copies under way: %s\n", exec_wrong == 0 ? "all right" : "WRONG");

  pid_t children[kProcesses];
  for (int i = 0; i < kProcesses; ++i)
    children[i] = in_child([i] {
      self_killing_io io(-1);
      return copy_and_check(io, 100 + static_cast<std::uint32_t>(i), 500, false);
    });
  int many_wrong = 0;
  for (const pid_t child : children) many_wrong += outcome_of(child) != 0;
  std::printf("%d processes at once, 500 checked copies of 4 MiB each: %s\n", kProcesses,
              many_wrong == 0 ? "all right" : "WRONG");

  for (int i = 0; i < kProcesses; ++i)
    children[i] = in_child([i] {
      self_killing_io io(-1);
      return copy_and_check(io, 200 + static_cast<std::uint32_t>(i), 100'000, false);
    });
  usleep(kKilledAfterUs);
  int killed_wrong = 0;
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) killed_wrong += outcome_of(child) != -SIGKILL;
  killed_wrong += outcome_of(in_child([] {
                    self_killing_io io(-1);
                    return copy_and_check(io, 5, 20, false);
                  })) != 0;
  std::printf("%d processes killed at once with copies under way, and a new channel: %s\n", kProcesses,
              killed_wrong == 0 ? "all right" : "WRONG");

  const int leftover = outcome_of(in_child([] { return leftover_descriptors(); }));
  std::printf("20 times opened and closed in one process: %s\n",
              leftover == 0 ? "no descriptor is left" : "DESCRIPTORS LEFT");
  return wrong + exec_wrong + many_wrong + killed_wrong + leftover == 0 ? 0 : 1;
}
