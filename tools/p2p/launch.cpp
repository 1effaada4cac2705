// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "clock.hpp"
#include "text.hpp"
#include "tool.hpp"

namespace pl::p2p {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kWordsBytes = 2000;
constexpr std::uint64_t kPatienceNs = 120'000'000'000;

std::optional<int> number_in(const char* name) {
  const char* text = launcher_says(name);
  if (text == nullptr) return std::nullopt;
  const auto value = parse_integer(text);
  return value && *value >= 0 && *value < 1'000'000 ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

struct launcher_names {
  const char *rank, *size, *local_rank;
};
constexpr std::array kLaunchers = {
    launcher_names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    launcher_names{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
    launcher_names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    launcher_names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

}  // namespace

const char* launcher_says(const char* name) { return std::getenv(name); }  // lint:allow(getenv) launchers set it, not users

std::optional<rank_place> place_from_environment() {
  for (const auto& names : kLaunchers) {
    // A batch script has SLURM_PROCID too; a step of it is what srun starts.
    if (std::strcmp(names.rank, "SLURM_PROCID") == 0 && launcher_says("SLURM_STEP_ID") == nullptr) continue;
    const auto rank = number_in(names.rank), size = number_in(names.size);
    if (!rank || !size || *size < 1 || *rank >= *size) continue;
    return rank_place{*rank, *size, number_in(names.local_rank).value_or(*rank)};
  }
  return std::nullopt;
}

// ---- the shared memory ---------------------------------------------------------------------------------------------------

struct fork_world::shared {
  std::atomic<unsigned> arrived{0}, generation{0};
  std::atomic<int> failed_rank{-1};
  std::atomic<bool> words_written{false};
  char words[kWordsBytes] = "";
  // followed by one of these for each rank
  struct slot {
    std::uint64_t total_bytes;
    std::byte chunk[kChunkBytes];
  };
  slot* slots() { return reinterpret_cast<slot*>(this + 1); }
};

namespace {

class fork_bootstrap : public link::bootstrap {
 public:
  fork_bootstrap(std::atomic<unsigned>& arrived, std::atomic<unsigned>& generation, std::byte* slots, std::size_t slot_bytes,
                 int rank, int size)
      : arrived_(arrived), generation_(generation), slots_(slots), slot_bytes_(slot_bytes), rank_(rank), size_(size) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  status barrier() override {
    const unsigned now = generation_.load();
    if (arrived_.fetch_add(1) + 1 == static_cast<unsigned>(size_)) {
      arrived_.store(0);
      generation_.store(now + 1);
      return {};
    }
    const std::uint64_t begin_ns = monotonic_ns();
    while (generation_.load() == now) {
      if (monotonic_ns() - begin_ns > kPatienceNs)
        return failure{ETIMEDOUT, format("rank %d waited 120 s for the other processes of this run", rank_)};
      usleep(50);
    }
    return {};
  }

  // In rounds of a chunk each; everybody sees all lengths in the first, so the number of rounds is the same for all.
  result<std::vector<link::byte_string>> all_gather(std::span<const std::byte> mine) override {
    std::vector<link::byte_string> out(static_cast<std::size_t>(size_));
    std::size_t longest = 0, done = 0;
    do {
      const std::uint64_t total = mine.size();
      const std::size_t now = std::min(kChunkBytes, mine.size() - std::min(done, mine.size()));
      std::memcpy(slot(rank_), &total, sizeof total);
      if (now != 0) std::memcpy(slot(rank_) + sizeof total, mine.data() + done, now);
      if (auto met = barrier(); !met) return met.error();
      for (int from = 0; from < size_; ++from) longest = std::max(longest, take_chunk(from, done, out));
      if (auto met = barrier(); !met) return met.error();  // before the slots are written again
      done += kChunkBytes;
    } while (done < longest);
    return out;
  }

 private:
  std::byte* slot(int rank) const { return slots_ + slot_bytes_ * static_cast<std::size_t>(rank); }
  std::size_t take_chunk(int from, std::size_t done, std::vector<link::byte_string>& out) const {
    std::uint64_t total = 0;
    std::memcpy(&total, slot(from), sizeof total);
    const std::size_t bytes = std::min<std::size_t>(kChunkBytes, total - std::min<std::size_t>(done, total));
    auto& text = out[static_cast<std::size_t>(from)];
    text.insert(text.end(), slot(from) + sizeof total, slot(from) + sizeof total + bytes);
    return total;
  }

  std::atomic<unsigned>& arrived_;
  std::atomic<unsigned>& generation_;
  std::byte* slots_;
  std::size_t slot_bytes_;
  int rank_, size_;
};

}  // namespace

fork_world::fork_world(int size)
    : mapped_bytes_(sizeof(shared) + sizeof(shared::slot) * static_cast<std::size_t>(size)), size_(size) {
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw tools::tool_failure("no shared memory for the processes of this run: " + errno_text(errno));
  shared_ = new (memory) shared;
}

fork_world::~fork_world() { munmap(shared_, mapped_bytes_); }

std::unique_ptr<link::bootstrap> fork_world::join(int rank) {
  return std::make_unique<fork_bootstrap>(shared_->arrived, shared_->generation,
                                          reinterpret_cast<std::byte*>(shared_->slots()), sizeof(shared::slot), rank, size_);
}

void fork_world::tell_failure(int rank, const std::string& words) {
  int nobody = -1;
  if (!shared_->failed_rank.compare_exchange_strong(nobody, rank)) return;
  const std::size_t length = std::min(words.size(), kWordsBytes - 1);
  std::memcpy(shared_->words, words.data(), length);
  shared_->words[length] = '\0';
  shared_->words_written.store(true);
}

std::optional<std::string> fork_world::failure_words() const {
  if (!shared_->words_written.load()) return std::nullopt;
  return format("rank %d: %s", shared_->failed_rank.load(), shared_->words);
}

// ---- the processes -------------------------------------------------------------------------------------------------------

namespace {

[[noreturn]] void live_as(fork_world& world, int rank, pid_t parent, const std::function<int(int)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(tools::kExitFailed);  // it ended before the line above
  int code = tools::kExitFailed;
  try {
    code = body(rank);
  } catch (const std::exception& failure) { world.tell_failure(rank, failure.what()); }
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);  // handlers of the parent's exit are not ours to run
}

void end_all(const std::vector<pid_t>& children) {
  for (const pid_t child : children)
    if (child > 0) kill(child, SIGKILL);
}

std::string words_about_signal(int rank, int signal) {
  return format("rank %d was ended by signal %d (%s)", rank, signal, strsignal(signal));
}

}  // namespace

int run_forked(fork_world& world, const std::string& program, const std::function<int(int rank)>& body) {
  std::fflush(stdout);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int rank = 0; rank < world.size(); ++rank) {
    const pid_t child = fork();
    if (child == 0) live_as(world, rank, parent, body);
    if (child < 0) {
      end_all(children);
      throw tools::tool_failure("a process for a rank cannot be made: " + errno_text(errno));
    }
    children.push_back(child);
  }
  int code = tools::kExitOk;
  std::string words;
  for (std::size_t left = children.size(); left != 0; --left) {
    int how = 0;
    const pid_t ended = waitpid(-1, &how, 0);
    const auto at = std::find(children.begin(), children.end(), ended);
    if (at == children.end()) break;
    *at = 0;
    const int rank = static_cast<int>(at - children.begin());
    if (words.empty() && WIFSIGNALED(how)) words = words_about_signal(rank, WTERMSIG(how));
    if (auto told = world.failure_words()) words = *told;
    if (WIFEXITED(how)) code = std::max(code, WEXITSTATUS(how));
    if (!words.empty()) end_all(children);
  }
  if (words.empty()) return code;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), words.c_str());
  return tools::kExitFailed;
}

}  // namespace pl::p2p
