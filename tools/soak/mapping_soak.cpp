// SPDX-License-Identifier: Apache-2.0
// The soak's part for mappings: a process maps, writes, reads, frees and forks at random and compares device memory with
// its own copy after each step. Some of these processes are killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <peerlane/peerlane.hpp>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/command_process.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/tool.hpp"
#include "tools/soak/soak.hpp"

namespace pl::soak {
namespace {

constexpr std::size_t kMaxBytes = 4u << 20;
constexpr std::size_t kAllocations = 6;

// One allocation, its expected contents, and a mapping of a part of it.
struct block {
  block(const tools::gpu_session& gpu, std::size_t bytes) : memory(gpu, bytes), expected(bytes) {
    gpu.check(gpu.cuda().cuMemsetD8_v2(memory.get(), 0, bytes), "cuMemsetD8");
    gpu.synchronize();
  }
  tools::device_memory memory;
  std::vector<unsigned char> expected;
  std::optional<peerlane::mapping> mapping;
  std::size_t mapped_from = 0, mapped_bytes = 0;
};

template <class Outcome>
void must(const Outcome& outcome, const char* action) {
  if (!outcome) throw tools::tool_failure(format("%s: %s", action, outcome.error().message.c_str()));
}

class mapping_worker {
 public:
  mapping_worker(const tools::gpu_session& gpu, std::uint64_t seed) : gpu_(gpu), random_(seed) {
    auto opened = peerlane::session::open();
    must(opened, "peerlane::session::open");
    session_ = std::move(*opened);
    blocks_.resize(kAllocations);
  }

  void step() {
    auto& slot = blocks_[random_() % blocks_.size()];
    if (!slot) {
      slot = std::make_unique<block>(gpu_, 1 + random_() % kMaxBytes);
      return;
    }
    if (!slot->mapping) return map(*slot);
    switch (random_() % 16) {
      case 0:
        return unmap(*slot);
      case 1:
        return free_mapped(slot);
      case 2:
        return fork_beside(*slot);
      case 3:
        return device_writes(*slot);
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        return write(*slot);
      default:
        return read(*slot);
    }
  }

 private:
  std::size_t some(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  // Mostly small copies, which mappings are for.
  std::size_t length(std::size_t limit) { return 1 + some(random_() % 4 == 0 ? limit : std::min<std::size_t>(limit, 300)); }

  void map(block& one) {
    one.mapped_from = some(one.expected.size());
    one.mapped_bytes = 1 + some(one.expected.size() - one.mapped_from);
    auto mapped = session_.map(one.memory.get() + one.mapped_from, one.mapped_bytes);
    must(mapped, "map");
    one.mapping = std::move(*mapped);
  }
  void unmap(block& one) {
    must(one.mapping->unmap(), "unmap");
    one.mapping.reset();
    compare_by_device(one);
  }
  // Mapped memory outlives its free, and the mapping still shows the contents.
  void free_mapped(std::unique_ptr<block>& slot) {
    slot->memory.free();
    std::vector<unsigned char> got(slot->mapped_bytes);
    const auto read = slot->mapping->read(0, got.data(), got.size());
    if (read && std::memcmp(got.data(), slot->expected.data() + slot->mapped_from, got.size()) != 0)
      throw tools::tool_failure("a mapping of freed memory shows other bytes");
    must(slot->mapping->unmap(), "unmap after the memory was freed");
    slot.reset();
  }
  void write(block& one) {
    const std::size_t offset = some(one.mapped_bytes), bytes = std::min(length(one.mapped_bytes), one.mapped_bytes - offset);
    unsigned char* expected = one.expected.data() + one.mapped_from + offset;
    for (std::size_t i = 0; i < bytes; ++i) expected[i] = static_cast<unsigned char>(random_());
    must(one.mapping->write(offset, expected, bytes), "write");
    if (one.mapping->write(offset, expected, one.mapped_bytes - offset + 1))
      throw tools::tool_failure("a write past the end of a mapping was accepted");
  }
  void read(block& one) {
    const std::size_t offset = some(one.mapped_bytes), bytes = std::min(length(one.mapped_bytes), one.mapped_bytes - offset);
    std::vector<unsigned char> got(bytes);
    must(one.mapping->read(offset, got.data(), bytes), "read");
    if (std::memcmp(got.data(), one.expected.data() + one.mapped_from + offset, bytes) != 0)
      throw tools::tool_failure(format("a read of %zu bytes at %zu shows other bytes", bytes, one.mapped_from + offset));
  }
  void device_writes(block& one) {
    const std::size_t offset = some(one.expected.size()), bytes = 1 + some(one.expected.size() - offset);
    const auto value = static_cast<unsigned char>(random_());
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(one.memory.get() + offset, value, bytes), "cuMemsetD8");
    gpu_.synchronize();
    std::memset(one.expected.data() + offset, value, bytes);
  }
  // The child has no mapping: its calls are refused, and the parent's memory stays as it is.
  void fork_beside(block& one) {
    const pid_t child = fork();
    if (child == 0) {
      unsigned char byte = 0;
      _exit(one.mapping->write(0, &byte, 1) ? 1 : 0);
    }
    int state = 0;
    if (child < 0 || waitpid(child, &state, 0) != child) return;
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
      throw tools::tool_failure("a forked child's write through its parent's mapping: " + state_text(state));
    read(one);
  }
  void compare_by_device(block& one) {
    std::vector<unsigned char> got(one.expected.size());
    gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(got.data(), one.memory.get(), got.size()), "cuMemcpyDtoH");
    if (got != one.expected) throw tools::tool_failure("device memory holds other bytes than were written through mappings");
  }

  const tools::gpu_session& gpu_;
  std::mt19937_64 random_;
  peerlane::session session_;
  std::vector<std::unique_ptr<block>> blocks_;
};

}  // namespace

int run_mapping_worker(int gpu, std::uint64_t seed, std::uint64_t seconds) {
  const tools::gpu_session session(gpu, false);
  mapping_worker worker(session, seed);
  const std::uint64_t end_ns = monotonic_ns() + seconds * 1'000'000'000;
  std::uint64_t steps = 0;
  for (; monotonic_ns() < end_ns; ++steps) worker.step();
  std::printf("steps %llu\n", static_cast<unsigned long long>(steps));
  return tools::kExitOk;
}

void run_mappings(const plan& run, findings& seen) {
  std::mt19937_64 random(run.seed * 3 + 2);
  const std::string log = run.folder + "/mappings.log";
  for (std::uint64_t round = 0; !is_over(run); ++round) {
    const std::uint64_t seed = random(), seconds = 1 + random() % 4;
    const bool is_killed = random() % 3 == 0;
    command_process worker({{"soak", "--mapping-worker", std::to_string(seconds), "--seed",
                             std::to_string(seed % 1'000'000'007), "-d", std::to_string(run.gpu)},
                            log,
                            0,
                            {}});
    if (is_killed) {
      pause_ms(run, random() % (seconds * 1000));
      worker.send(SIGKILL);
    }
    const auto state = wait_for(run, seen, worker, kHungMs);
    if (is_interrupted(run)) return;
    seen.count(is_killed ? "workers killed" : "workers run to their end");
    if (!state)
      seen.violation(format("a mapping worker (seed %llu) hung", static_cast<unsigned long long>(seed % 1'000'000'007)));
    else if (!(is_killed && WIFSIGNALED(*state) && WTERMSIG(*state) == SIGKILL) && *state != 0)
      seen.violation(format("a mapping worker (seed %llu) ended by %s; %s has its words",
                            static_cast<unsigned long long>(seed % 1'000'000'007), state_text(*state).c_str(), log.c_str()));
  }
}

}  // namespace pl::soak
