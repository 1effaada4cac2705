// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/stopped.hpp"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kFirstWord = 1000;
constexpr std::uint64_t kQueueLimitNs = 40'000'000'000;
constexpr std::uint64_t kStopLimitNs = 5'000'000'000;

void nap() {
  const timespec a_little{0, 50'000};
  nanosleep(&a_little, nullptr);
}

// Fields of /proc/PID/task/TID/stat after the name: the state, and the ticks of user and system time.
struct task_facts {
  char state = '?';
  std::int64_t ticks = 0;
};
task_facts facts_of(const std::string& path) {
  task_facts out;
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return out;
  char line[1024] = "";
  const bool is_read = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  const char* const rest = is_read ? std::strrchr(line, ')') : nullptr;
  long long user = 0, system = 0;
  if (rest != nullptr &&
      std::sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &out.state, &user, &system) == 3)
    out.ticks = user + system;
  return out;
}

// Every thread of the process is stopped.
bool is_stopped(pid_t process) {
  const auto folder = format("/proc/%d/task", static_cast<int>(process));
  DIR* const tasks = opendir(folder.c_str());
  if (tasks == nullptr) return false;
  bool all = true;
  while (const dirent* const each = readdir(tasks))
    if (each->d_name[0] != '.') all = all && facts_of(folder + "/" + each->d_name + "/stat").state == 'T';
  closedir(tasks);
  return all;
}

std::int64_t ticks_of(const pid_t* ranks) {
  std::int64_t sum = 0;
  for (int i = 0; i < stopped_board::kRanks; ++i) sum += facts_of(format("/proc/%d/stat", static_cast<int>(ranks[i]))).ticks;
  return sum;
}

bool are_queued(const stopped_board& board) {
  return board.ranks[0].is_queued.load() != 0 && board.ranks[1].is_queued.load() != 0;
}
bool are_done(const stopped_board& board) {
  return board.ranks[0].done.load(std::memory_order_acquire) != 0 &&
         board.ranks[1].done.load(std::memory_order_acquire) != 0;
}

}  // namespace

// ---- The watcher

stopped_watcher::stopped_watcher(const stopped_plan& plan) : plan_(plan) {
  void* const memory = mmap(nullptr, sizeof(stopped_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw tools::tool_failure("no shared memory for this run: " + errno_text(errno));
  board_ = new (memory) stopped_board{};
}

void stopped_watcher::start() {
  thread_ = std::thread([this] { watch(); });
}

stopped_watcher::~stopped_watcher() {
  is_over_.store(true);
  if (thread_.joinable()) thread_.join();
  munmap(board_, sizeof(stopped_board));
}

bool stopped_watcher::wait_until(std::uint64_t limit_ns, bool (*is_so)(const stopped_board&)) const {
  const auto end = monotonic_ns() + limit_ns;
  while (!is_so(*board_)) {
    if (is_over_.load() || monotonic_ns() > end) return false;
    nap();
  }
  return true;
}

void stopped_watcher::watch() {
  int outcome = stopped_board::ranks_not_ready;
  if (wait_until(kQueueLimitNs, are_queued)) {
    const pid_t ranks[] = {board_->ranks[0].is_queued.load(), board_->ranks[1].is_queued.load()};
    const auto begin = monotonic_ns();
    for (const pid_t rank : ranks) kill(rank, SIGSTOP);
    outcome = stop_and_check(ranks);
    board_->stopped_ns = monotonic_ns() - begin;
    for (const pid_t rank : ranks) kill(rank, SIGCONT);
  }
  board_->gate.store(1);  // whatever happened, so that the ranks' streams end
  board_->outcome.store(outcome);
}

int stopped_watcher::stop_and_check(const pid_t* ranks) {
  const auto end = monotonic_ns() + kStopLimitNs;
  while (!is_stopped(ranks[0]) || !is_stopped(ranks[1])) {
    if (is_over_.load() || monotonic_ns() > end) return stopped_board::not_stopped;
    nap();
  }
  const auto ticks = ticks_of(ranks);
  const auto begin = monotonic_ns();
  board_->gate.store(1);
  const bool is_done = wait_until(static_cast<std::uint64_t>(plan_.timeout_ms) * 1'000'000, are_done);
  board_->exchange_ns = monotonic_ns() - begin;
  board_->cpu_ticks = ticks_of(ranks) - ticks;
  if (!is_stopped(ranks[0]) || !is_stopped(ranks[1])) return stopped_board::not_stopped;
  return is_done ? stopped_board::finished_while_stopped : stopped_board::not_finished;
}

// ---- The ranks

namespace {

class registered_board {
 public:
  registered_board(const bench_rank& session, stopped_board& board) : session_(session), board_(&board) {
    session.gpu().check(
        session.cuda().cuMemHostRegister_v2(board_, sizeof(stopped_board), cu::host_register_flag::device_map),
        "cuMemHostRegister");
    session.gpu().check(session.cuda().cuMemHostGetDevicePointer_v2(&address_, board_, 0), "cuMemHostGetDevicePointer");
  }
  ~registered_board() { static_cast<void>(session_.cuda().cuMemHostUnregister(board_)); }
  registered_board(const registered_board&) = delete;
  registered_board& operator=(const registered_board&) = delete;

  std::uint64_t gate() const { return address_ + offsetof(stopped_board, gate); }
  std::uint64_t done(int rank) const {
    return address_ + offsetof(stopped_board, ranks) + static_cast<std::uint64_t>(rank) * sizeof(stopped_board::rank_part);
  }

 private:
  const bench_rank& session_;
  stopped_board* board_;
  cu::device_ptr address_ = 0;
};

void queue(const bench_rank& session, triggered::channel& link, const stopped_plan& plan, const registered_board& words) {
  const auto& window = session.window_of(1 - session.rank());
  const auto send = [&] {
    static_cast<void>(tools::must(link.put_signal(session.stream(), window, 0, session.send_buffer(), plan.bytes)));
  };
  tools::must(triggered::mem_ops(session.cuda(), session.stream()).wait64(words.gate(), 1).submit());
  for (int i = 0; i < plan.iterations; ++i) {
    if (session.rank() == 0) send();
    static_cast<void>(tools::must(link.wait_signal(session.stream())));
    session.launch_step(plan.bytes, 0);
    if (session.rank() == 1) send();
  }
  tools::must(triggered::mem_ops(session.cuda(), session.stream()).write64(words.done(session.rank()), 1).submit());
}

const char* words_of(int outcome) {
  switch (outcome) {
    case stopped_board::finished_while_stopped:
      return "the exchange ended while both processes were stopped: no CPU took part";
    case stopped_board::not_finished:
      return "the exchange did not end while the processes were stopped";
    case stopped_board::ranks_not_ready:
      return "the ranks had not queued everything in time: their launch queues are full? Ask for fewer iterations";
    default:
      return "the processes did not stay stopped";
  }
}

void print_results(const bench_rank& session, const stopped_plan& plan, const stopped_board& board, result_file* file) {
  const int outcome = board.outcome.load();
  std::printf("# %d round trips of %zu bytes, queued behind a gate, by two processes that are then stopped\n",
              plan.iterations, plan.bytes);
  std::printf("%s\n", words_of(outcome));
  std::printf("stopped for %.1f ms; gate to end %.1f us; CPU ticks (1/%ld s) that they used meanwhile: %lld\n",
              static_cast<double>(board.stopped_ns) * 1e-6, static_cast<double>(board.exchange_ns) * 1e-3,
              sysconf(_SC_CLK_TCK), static_cast<long long>(board.cpu_ticks));
  if (session.gpu().simulated())
    std::printf("not a proof, nor a failure: the simulated GPU's streams are threads of the stopped processes\n");
  if (file == nullptr) return;
  file->set_parameter("iterations", plan.iterations);
  file->add_row({{"size_bytes", plan.bytes},
                 {"finished_while_stopped", outcome == stopped_board::finished_while_stopped},
                 {"outcome", words_of(outcome)},
                 {"exchange_ns", board.exchange_ns},
                 {"stopped_ns", board.stopped_ns},
                 {"cpu_ticks_while_stopped", board.cpu_ticks}});
}

}  // namespace

int run_stopped(bench_rank& session, const stopped_plan& plan, stopped_board& board, result_file* file) {
  triggered::channel_options options;
  options.executor = triggered::executor_kind::peer;
  options.most_queued = static_cast<unsigned>(plan.iterations);
  const auto link = session.connect(1 - session.rank(), session.new_channel_id(), options);
  const registered_board words(session, board);
  session.launch_step(plan.bytes, 0);  // loads what the driver loads at a first launch
  session.synchronize();
  session.fill(kFirstWord, plan.bytes);
  session.barrier();
  queue(session, *link, plan, words);
  board.ranks[session.rank()].is_queued.store(getpid());
  while (board.outcome.load() == stopped_board::waiting) nap();
  session.synchronize();
  if (const auto now = link->state(); now.error != 0) throw tools::tool_failure("the channel broke: " + now.reason);
  session.barrier();
  const auto expected = kFirstWord + 2 * static_cast<std::uint64_t>(plan.iterations) - (session.rank() == 0 ? 0 : 1);
  const auto wrong = session.wrong_words(expected, plan.bytes);
  if (wrong != 0) std::fprintf(stderr, "%zu of %zu words are wrong afterwards\n", wrong, plan.bytes / 8);
  if (session.rank() == 0) print_results(session, plan, board, file);
  const int outcome = board.outcome.load();
  const bool is_right = wrong == 0 && (outcome == stopped_board::finished_while_stopped ||
                                       (outcome == stopped_board::not_finished && session.gpu().simulated()));
  if (file != nullptr) file->set_pass(is_right);
  return is_right ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace pl::async
