// SPDX-License-Identifier: Apache-2.0
#include "copy/worker_pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

using body_function = void (*)(void* context, std::size_t part);
using finish_function = void (*)(void* context);
using cpu_numbers = std::vector<int>;

constexpr std::size_t kPartsOfLongJob =
    16;                               // several hundred microseconds: all are woken at once, whatever that costs the caller
constexpr unsigned kMaxHelpers = 32;  // the bits of a futex's wake mask; no bus is that fast
constexpr int kMaxCpus = 65536;       // far above any machine
constexpr std::size_t kDestructiveBytes = 128;  // a line and the neighbour that x86 fetches with it
// A helper that holds a part for longer than this many pauses (about 50 us) is not running: the caller may be on its
// CPU.
constexpr unsigned kPausesBeforeYield = 1000;
constexpr unsigned kPausesBetweenClocks = 32;  // about 1.5 us

// ---- CPUs ------------------------------------------------------------------------------------------------------------
struct cpu_mask {
  std::array<cpu_set_t, kMaxCpus / CPU_SETSIZE> sets{};
  cpu_set_t* get() { return sets.data(); }
  static constexpr std::size_t size_bytes() { return sizeof sets; }
};

cpu_numbers cpus_of_this_thread() {
  cpu_mask mask;
  cpu_numbers out;
  if (sched_getaffinity(0, cpu_mask::size_bytes(), mask.get()) != 0) return out;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu)
    if (CPU_ISSET_S(cpu, cpu_mask::size_bytes(), mask.get())) out.push_back(cpu);
  return out;
}

// Errors are ignored: a helper on another CPU is slower but correct.
void pin_this_thread(const cpu_numbers& cpus) {
  if (cpus.empty()) return;
  cpu_mask mask;
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < kMaxCpus) CPU_SET_S(cpu, cpu_mask::size_bytes(), mask.get());
  sched_setaffinity(0, cpu_mask::size_bytes(), mask.get());
}

// Where the process may run: the CPUs that it was started with, not those of the calling thread. A caller that has
// pinned itself to one CPU, as latency-sensitive programs do, says nothing about helpers; inheriting its mask would put
// all of them on its CPU. Never destroyed: helpers may start as late as in destructors at exit.
const cpu_numbers& cpus_of_process() {
  static const cpu_numbers& cpus = *new cpu_numbers(cpus_of_this_thread());
  return cpus;
}
__attribute__((constructor)) void remember_cpus_of_process() { cpus_of_process(); }

cpu_numbers common(const cpu_numbers& a, const cpu_numbers& b) {  // both sorted ascending
  cpu_numbers out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

// "0-3,8" -> {0,1,2,3,8}; empty for anything else. (The parser in src/os is for programs only, because it needs hwloc.)
cpu_numbers parse_cpus(const std::string& text) {
  cpu_numbers out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const auto low = parse_integer(part.substr(0, dash));
    const auto high = dash == std::string::npos ? low : parse_integer(part.substr(dash + 1));
    if (!low || !high || *low < 0 || *high < *low || *high >= kMaxCpus) return {};
    for (auto cpu = *low; cpu <= *high; ++cpu) out.push_back(static_cast<int>(cpu));
    begin = end + 1;
  }
  std::sort(out.begin(), out.end());
  return out;
}

// ---- The word by which parts are claimed -----------------------------------------------------------------------------
// Generation of the job (40 bits; no helper stalls for the days that it takes to wrap) and parts that nobody has
// claimed yet (24 bits). It counts down, so the word alone tells whether something is left: claiming is one
// compare-and-swap, which fails if anything happened since the word was read, including a new job.
constexpr unsigned kPartBits = 24;
constexpr std::uint64_t kPartMask = (std::uint64_t{1} << kPartBits) - 1;
constexpr std::size_t kMaxParts = kPartMask;

constexpr std::uint64_t generation_of(std::uint64_t word) { return word >> kPartBits; }
constexpr std::size_t unclaimed_in(std::uint64_t word) { return word & kPartMask; }

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, std::uint32_t mask) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  return syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, mask);
}

unsigned effective_helpers(const worker_pool::options& wanted) {
  // One CPU is the caller's. Helpers that share a CPU would only take turns with the caller or with each other.
  const cpu_numbers& all = cpus_of_process();
  std::size_t most = all.empty() ? kMaxHelpers : all.size() - 1;
  if (!wanted.cpus.empty()) most = std::min(most, wanted.cpus.size());
  return static_cast<unsigned>(std::min<std::size_t>({wanted.helpers, most, kMaxHelpers}));
}

}  // namespace

// Why a late helper does no harm: it reads the claim word with parts left, then the job's fields, then claims by
// compare-and-swap. If that succeeds, the word had not changed since it was read, so the fields are this job's: the
// caller writes the next job's only after every part of this one has been claimed *and ended*, and this part had not
// been claimed. If it fails, what was read is discarded. A helper that arrives when nothing is left touches neither
// body nor context.
struct worker_pool::state {
  // One line, written by the caller, that a hot helper gets with one miss. Atomic because late helpers read it at any
  // time.
  struct alignas(kDestructiveBytes) job_line {
    std::atomic<std::uint64_t> claims{0};
    std::atomic<body_function> body{nullptr};
    std::atomic<finish_function> finish{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<std::size_t> parts{0};
    std::atomic<unsigned> wanted{0};  // helpers [0, wanted) may take part
    std::atomic<bool> stopping{false};
  } job;
  // Parts of this job that helpers have finished. A helper adds all of its own at once, after its last one.
  alignas(kDestructiveBytes) std::atomic<std::size_t> ended{0};
  // Bit i: helper i sleeps on wake_word, or is about to. The waking thread clears the bit.
  alignas(kDestructiveBytes) std::atomic<std::uint32_t> sleeping_helpers{0};
  std::atomic<std::uint32_t> wake_word{0};

  // Used by the caller only.
  struct thread_slot {
    state* pool = nullptr;
    unsigned index = 0;
    pthread_t thread{};
  };
  alignas(kDestructiveBytes) std::atomic<bool> is_busy{false};
  std::atomic<unsigned> capacity{0};  // helpers that exist or can be started
  unsigned started = 0;               // guarded by is_busy
  std::array<thread_slot, kMaxHelpers> seats;
  std::uint32_t epoch = 0;
  std::uint64_t spin_ns = 0;
  cpu_numbers cpus;

  // ---- The caller's side ----
  void run(unsigned wanted, std::size_t parts, body_function body, void* context, finish_function finish);
  void publish(std::size_t unclaimed);
  void wake_next(unsigned wanted);
  void wake(std::uint32_t mask);
  void wait_for_helpers(std::size_t parts);
  unsigned start_helpers(unsigned wanted);
  bool start_helper(unsigned mask);
  void stop();

  // ---- The helpers' side ----
  static void* thread_main(void* its_seat);
  void serve(unsigned mask);
  void take_parts(unsigned mask);
  bool sleep(unsigned mask, std::uint64_t seen_generation);
};

// ---- The caller's side -----------------------------------------------------------------------------------------------
void worker_pool::state::run(unsigned wanted, std::size_t parts, body_function body, void* context, finish_function finish) {
  ended.store(0, std::memory_order_relaxed);
  job.body.store(body, std::memory_order_relaxed);
  job.finish.store(finish, std::memory_order_relaxed);
  job.context.store(context, std::memory_order_relaxed);
  job.parts.store(parts, std::memory_order_relaxed);
  job.wanted.store(wanted, std::memory_order_relaxed);
  publish(parts - 1);  // part 0 is the caller's already, which saves a swap
  if (parts >= kPartsOfLongJob) wake(static_cast<std::uint32_t>((std::uint64_t{1} << wanted) - 1));
  else wake_next(wanted);
  body(context, 0);
  std::size_t own = 1;
  std::uint64_t word = job.claims.load(std::memory_order_relaxed);
  while (unclaimed_in(word) != 0) {
    if (!job.claims.compare_exchange_weak(word, word - 1, std::memory_order_relaxed)) continue;
    body(context, parts - unclaimed_in(word));
    ++own;
    word = job.claims.load(std::memory_order_relaxed);
  }
  if (finish != nullptr) finish(context);
  wait_for_helpers(parts - own);
}

// Sequentially consistent, like the load in wake_next() and their counterparts in sleep(): either the caller sees that
// a helper goes to sleep, or the helper sees that there is a new job.
void worker_pool::state::publish(std::size_t unclaimed) {
  const std::uint64_t next = generation_of(job.claims.load(std::memory_order_relaxed)) + 1;
  job.claims.store((next << kPartBits) | unclaimed, std::memory_order_seq_cst);
}

// A system call takes about 3 us in a virtual machine, for each helper. So each thread wakes at most one: the caller
// wakes the first, and each woken helper the next, while there are parts for it. That chain takes too long for long
// jobs (a halted virtual CPU takes up to 0.1 ms to wake).
void worker_pool::state::wake_next(unsigned wanted) {
  const std::uint64_t asleep = sleeping_helpers.load(std::memory_order_seq_cst) & ((std::uint64_t{1} << wanted) - 1);
  if (asleep != 0) wake(static_cast<std::uint32_t>(asleep & (~asleep + 1)));
}

void worker_pool::state::wake(std::uint32_t mask) {
  // Clearing the bits first keeps other threads from waking the same helper again.
  const std::uint32_t woken = sleeping_helpers.fetch_and(~mask, std::memory_order_seq_cst) & mask;
  if (woken == 0) return;
  wake_word.fetch_add(1, std::memory_order_seq_cst);
  futex(wake_word, FUTEX_WAKE_BITSET, INT_MAX, woken);
}

// Waits without a limit: a helper is in the body and uses the caller's memory. It ends as the caller's own part does.
void worker_pool::state::wait_for_helpers(std::size_t parts) {
  for (unsigned pauses = 0; ended.load(std::memory_order_acquire) != parts; ++pauses) {
    arch::relax();
    if (pauses >= kPausesBeforeYield) sched_yield();
  }
}

unsigned worker_pool::state::start_helpers(unsigned wanted) {
  for (; started < wanted; ++started)
    if (!start_helper(started)) {
      capacity.store(started, std::memory_order_relaxed);  // not retried: that would cost every job a system call
      return started;
    }
  return wanted;
}

bool worker_pool::state::start_helper(unsigned index) {
  seats[index] = {this, index, {}};
  const blocked_signals blocked;
  return pthread_create(&seats[index].thread, nullptr, thread_main, &seats[index]) == 0;
}

void worker_pool::state::stop() {
  job.stopping.store(true, std::memory_order_relaxed);
  publish(0);
  wake(~std::uint32_t{0});
  for (unsigned i = 0; i < started; ++i) pthread_join(seats[i].thread, nullptr);
}

// ---- The helpers' side -----------------------------------------------------------------------------------------------
void* worker_pool::state::thread_main(void* its_seat) {
  const thread_slot& place = *static_cast<const thread_slot*>(its_seat);
  char name[16];
  std::snprintf(name, sizeof name, "pl-copy-%u", place.index);
  pthread_setname_np(pthread_self(), name);
  pin_this_thread(place.pool->cpus.empty() ? cpus_of_process() : place.pool->cpus);
  place.pool->serve(place.index);
  return nullptr;
}

void worker_pool::state::serve(unsigned index) {
  std::uint64_t seen = 0;
  std::uint64_t hot_until = monotonic_ns() + spin_ns;
  for (unsigned pauses = 0;; ++pauses) {
    if (const std::uint64_t now = generation_of(job.claims.load(std::memory_order_acquire)); now != seen) {
      seen = now;
      if (job.stopping.load(std::memory_order_relaxed)) return;
      if (index >= job.wanted.load(std::memory_order_relaxed)) continue;  // not its job, so it does not keep the helper hot
      take_parts(index);
      hot_until = monotonic_ns() + spin_ns;
      pauses = 0;
    }
    arch::relax();
    if (pauses % kPausesBetweenClocks != kPausesBetweenClocks - 1 || monotonic_ns() < hot_until) continue;
    if (!sleep(index, seen)) continue;
    // This helper will take one of the parts that are left.
    if (unclaimed_in(job.claims.load(std::memory_order_acquire)) > 1) wake_next(job.wanted.load(std::memory_order_relaxed));
    hot_until = monotonic_ns() + spin_ns;
  }
}

void worker_pool::state::take_parts(unsigned index) {
  std::size_t own = 0;
  std::uint64_t word = job.claims.load(std::memory_order_acquire);
  while (unclaimed_in(word) != 0) {
    const body_function body = job.body.load(std::memory_order_relaxed);
    void* const context = job.context.load(std::memory_order_relaxed);
    const std::size_t parts = job.parts.load(std::memory_order_relaxed);
    if (index >= job.wanted.load(std::memory_order_relaxed)) break;  // a newer job than the one that woke it
    if (!job.claims.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    body(context, parts - unclaimed_in(word));
    ++own;
    word = job.claims.load(std::memory_order_acquire);
  }
  // The job stays the current one until this helper is counted, so everything here belongs to one job.
  if (own == 0) return;
  if (const finish_function finish = job.finish.load(std::memory_order_relaxed))
    finish(job.context.load(std::memory_order_relaxed));
  ended.fetch_add(own, std::memory_order_release);
}

// Returns true if woken for a job, false if there already is one that the helper has not seen.
bool worker_pool::state::sleep(unsigned index, std::uint64_t seen_generation) {
  const std::uint32_t bit = std::uint32_t{1} << index;
  while (true) {
    // Read before the bit is set: a wake in between changes it.
    const std::uint32_t before = wake_word.load(std::memory_order_seq_cst);
    sleeping_helpers.fetch_or(bit, std::memory_order_seq_cst);
    if (generation_of(job.claims.load(std::memory_order_seq_cst)) != seen_generation) {
      sleeping_helpers.fetch_and(~bit, std::memory_order_relaxed);
      return false;
    }
    futex(wake_word, FUTEX_WAIT_BITSET, before, bit);
    if ((sleeping_helpers.load(std::memory_order_seq_cst) & bit) == 0) return true;
    // Another helper was woken while this one went to sleep.
  }
}

// ---- Interface -------------------------------------------------------------------------------------------------------
worker_pool::worker_pool(options wanted) : state_(std::make_unique<state>()) {
  state_->capacity.store(effective_helpers(wanted), std::memory_order_relaxed);
  state_->epoch = claim_process_epoch();
  state_->spin_ns = std::uint64_t{wanted.spin_us} * 1000;
  state_->cpus = std::move(wanted.cpus);
}

worker_pool::~worker_pool() {
  if (process_epoch() == state_->epoch) state_->stop();  // a forked child has nobody to stop
}

unsigned worker_pool::helpers() const noexcept { return state_->capacity.load(std::memory_order_relaxed); }

void worker_pool::run(unsigned width, std::size_t parts, body_function body, void* context, finish_function finish) {
  if (parts == 0) return;
  const std::size_t useful = std::min<std::size_t>({width == 0 ? 0 : width - 1, parts - 1, helpers()});
  const bool is_shared = useful != 0 && parts <= kMaxParts && process_epoch() == state_->epoch &&
                         !state_->is_busy.exchange(true, std::memory_order_acquire);
  if (!is_shared) {
    for (std::size_t part = 0; part < parts; ++part) body(context, part);
    if (finish != nullptr) finish(context);
    return;
  }
  state_->run(state_->start_helpers(static_cast<unsigned>(useful)), parts, body, context, finish);
  state_->is_busy.store(false, std::memory_order_release);
}

std::vector<int> cpus_near(const char* pci_bus_id) {
  std::string path = "/sys/bus/pci/devices/";
  for (const char* c = pci_bus_id; *c != '\0'; ++c) path += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  std::ifstream file(path + "/local_cpulist");
  std::string line;
  std::getline(file, line);
  return common(parse_cpus(line), cpus_of_process());
}

}  // namespace pl::copy
