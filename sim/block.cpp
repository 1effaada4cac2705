// SPDX-License-Identifier: Apache-2.0
// One block on one OS thread: its CUDA threads are fibers, run in turn. They switch at sync_threads(), at every load
// and at pauses, so a thread that polls lets the others of its block, other blocks and the CPU get on.
//
// A kernel that faults, or whose context ends, is abandoned where it stands: its fibers are never resumed.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "base/log.hpp"
#include "sim/address_space.hpp"
#include "sim/fiber.hpp"
#include "sim/launch.hpp"
#include "sim/multicast.hpp"

namespace pl::sim {
namespace {

constexpr unsigned kRoundsBeforeCheck = 4;  // copies store every other round, and their loads need no look
constexpr unsigned kPatientRounds = 2000;   // fruitless rounds before a polling block starts to sleep
constexpr long kIdleSleepNs = 20'000;
constexpr std::size_t kCachedTranslations = 4;
constexpr std::size_t kPolledWords = 8;        // a thread that loads only these polls
constexpr std::size_t kSharedAlignment = 128;  // a GPU's begins at 0 of its own address space

std::atomic<unsigned long long> g_idle_rounds{0};

class block_runner {
 public:
  void run(const launch_run& launched, std::uint64_t index);

  // services, on the current fiber
  const sim_abi::thread_ids* self() const { return &current_->ids; }
  void* translate(std::uint64_t address, std::size_t bytes, bool is_write);
  unsigned multicast(std::uint64_t address, std::size_t bytes, void** out);
  void synchronize();
  void yield();
  void pause(std::uint64_t ns);
  bool take_store(std::uint64_t address, const void* value, std::size_t bytes, bool is_release);
  void fence_system();

 private:
  enum class state { ready, at_barrier, ended };
  struct cuda_thread {
    fiber stack;
    sim_abi::thread_ids ids{};
    state now = state::ended;
    std::uint64_t loaded[kPolledWords] = {};  // addresses
    std::size_t next_loaded = 0;
    bool loads_something_new(std::uint64_t address) noexcept {
      for (const std::uint64_t each : loaded)
        if (each == address) return false;
      loaded[next_loaded++ % kPolledWords] = address;
      return true;
    }
  };

  static void thread_main(void* runner);
  void prepare(std::uint64_t index);
  void run_round();
  void release_barrier();
  void relax();
  bool must_stop() const { return work_->fate->ended(); }
  [[noreturn]] void abandon();
  [[noreturn]] void fault(result_t reason, std::uint64_t address, const char* description);

  const reach& find(std::uint64_t address, std::size_t bytes, bool is_write);
  // Who the running CUDA thread is to the store buffer; its place among the block's threads is all that counts.
  store_author author() const;

  const launch* work_ = nullptr;
  store_buffer* stores_ = nullptr;
  std::uint64_t index_ = 0;
  std::vector<std::unique_ptr<cuda_thread>> threads_;  // reused from block to block
  unsigned count_ = 0;
  unsigned alive_ = 0;
  unsigned waiting_ = 0;
  cuda_thread* current_ = nullptr;
  bool has_progress_ = false;  // something but polling happened
  unsigned idle_rounds_ = 0;
  unsigned polls_ = 0;
  std::vector<std::uint64_t> shared_;
  reach cache_[kCachedTranslations];
  std::size_t next_cache_ = 0;
  std::uint64_t cache_generation_ = 0;
};

// The runner of the block that this thread runs. A plain pointer in static TLS: kernels come here at every access, and a
// thread-local object with a constructor in a library that is opened at run time costs two calls each time.
thread_local block_runner* t_runner [[gnu::tls_model("initial-exec")]] = nullptr;

void block_runner::thread_main(void* runner) {
  auto& self = *static_cast<block_runner*>(runner);
  self.work_->kernel->invoke(self.work_->parameters.data());
  self.current_->now = state::ended;
  self.current_->stack.leave(true);
  __builtin_unreachable();
}

void block_runner::prepare(std::uint64_t index) {
  const launch& w = *work_;
  count_ = alive_ = w.threads_per_block();
  waiting_ = idle_rounds_ = polls_ = 0;
  shared_.assign((w.shared_bytes + kSharedAlignment) / sizeof(std::uint64_t) + 1, 0);
  const auto first = reinterpret_cast<std::uintptr_t>(shared_.data());
  void* const shared = reinterpret_cast<void*>((first + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment);
  while (threads_.size() < count_) threads_.push_back(std::make_unique<cuda_thread>());
  for (unsigned i = 0; i < count_; ++i) {
    auto& ids = threads_[i]->ids;
    ids = {{i % w.block[0], i / w.block[0] % w.block[1], i / w.block[0] / w.block[1]},
           {static_cast<unsigned>(index % w.grid[0]), static_cast<unsigned>(index / w.grid[0] % w.grid[1]),
            static_cast<unsigned>(index / w.grid[0] / w.grid[1])},
           {w.block[0], w.block[1], w.block[2]},
           {w.grid[0], w.grid[1], w.grid[2]},
           shared,
           w.shared_bytes};
    threads_[i]->now = state::ready;
    threads_[i]->stack.start(&thread_main, this);
  }
}

void block_runner::run(const launch_run& launched, std::uint64_t index) {
  const launch& work = *launched.work;
  work_ = &work;
  stores_ = launched.stores.get();
  index_ = index;
  if (must_stop()) return;
  try {
    prepare(index);
  } catch (const std::bad_alloc&) {  // nobody above would catch it
    PL_LOG(error, "sim: no memory for the threads of a kernel's block (ulimit -d, ulimit -v?)");
    return work.fate->fail(code::out_of_memory);
  }
  while (alive_ != 0 && !must_stop()) {
    has_progress_ = false;
    run_round();
    if (waiting_ == alive_) release_barrier();
    if (alive_ != 0) relax();
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i]->stack.is_stack_intact()) continue;
    PL_LOG(error, "sim: a kernel thread needs more stack than a simulated one has (64 KiB)");
    work.fate->fail(code::launch_failed);
    threads_[i] = std::make_unique<cuda_thread>();
  }
  for (auto& entry : cache_) entry = {};
}

void block_runner::run_round() {
  for (unsigned i = 0; i < count_; ++i) {
    current_ = threads_[i].get();
    if (current_->now != state::ready) continue;
    current_->stack.resume();
    if (current_->now == state::ended) {
      --alive_;
      has_progress_ = true;
    }
    if (must_stop()) return;
  }
}

void block_runner::release_barrier() {
  if (alive_ == 0) return;
  waiting_ = 0;
  has_progress_ = true;
  if (stores_are_delayed()) stores_->join_block(index_);
  for (unsigned i = 0; i < count_; ++i)
    if (threads_[i]->now == state::at_barrier) threads_[i]->now = state::ready;
}

// Between rounds: the CPU belongs to others while this block only polls.
void block_runner::relax() {
  if (has_progress_) {
    idle_rounds_ = 0;
    return;
  }
  if (++idle_rounds_ <= kRoundsBeforeCheck) return;
  g_idle_rounds.fetch_add(1, std::memory_order_relaxed);
  if (idle_rounds_ < kPatientRounds) {
    sched_yield();
    return;
  }
  const timespec nap{0, kIdleSleepNs};
  nanosleep(&nap, nullptr);
}

void block_runner::abandon() {
  current_->now = state::ended;
  current_->stack.leave(true);
  __builtin_unreachable();
}

void block_runner::fault(result_t reason, std::uint64_t address, const char* launched) {
  PL_LOG(error, "sim: a kernel faults: %s at address 0x%llx (block %u, thread %u)", launched,
         static_cast<unsigned long long>(address), current_->ids.block[0], current_->ids.thread[0]);
  work_->fate->fail(reason);
  abandon();
}

void* block_runner::translate(std::uint64_t address, std::size_t bytes, bool is_write) {
  const reach& found = find(address, bytes, is_write);
  std::byte* const data = found.data + (address - found.base);
  if (stores_are_delayed() && is_remote(found.keep, work_->device_ordinal)) observe(data, bytes, work_->device_ordinal);
  return data;
}

store_author block_runner::author() const {
  const auto& ids = current_->ids;
  return {index_, ids.thread[0] + ids.block_dim[0] * (ids.thread[1] + ids.block_dim[1] * ids.thread[2])};
}

bool block_runner::take_store(std::uint64_t address, const void* value, std::size_t bytes, bool is_release) {
  const reach found = find(address, bytes, true);
  if (is_release) stores_->drain_of(author());
  if (!is_remote(found.keep, work_->device_ordinal)) return false;
  stores_->hold(found.data + (address - found.base), value, bytes, found.keep, author());
  return true;
}

void block_runner::fence_system() { stores_->drain_of(author()); }

const reach& block_runner::find(std::uint64_t address, std::size_t bytes, bool is_write) {
  // Accesses are powers of two, and a division by a variable would cost as much as all the rest here.
  if ((address & (bytes - 1)) != 0) [[unlikely]]
    fault(code::misaligned_address, address, "misaligned access");
  // What reads on through memory does not poll, and must not give its CPU away for it: where other threads want that, a
  // yield costs a whole time slice (Linux 6.18), and a kernel would take seconds to read 256 KiB.
  if (is_write || (idle_rounds_ >= kRoundsBeforeCheck && current_->loads_something_new(address))) has_progress_ = true;
  auto& space = address_space::instance();
  const std::uint64_t generation = space.generation();
  if (generation != cache_generation_) {
    for (auto& entry : cache_) entry = {};
    cache_generation_ = generation;
  }
  for (const auto& entry : cache_)
    if (address >= entry.base && address < entry.end && bytes <= entry.end - address && (!is_write || entry.is_writable))
      return entry;
  reach found;
  if (!space.reach_from_kernel(address, bytes, is_write, work_->device_ordinal, work_->reachable_devices, found))
    fault(code::illegal_address, address, is_write ? "illegal write" : "illegal read");
  return cache_[next_cache_++ % kCachedTranslations] = std::move(found);
}

unsigned block_runner::multicast(std::uint64_t address, std::size_t bytes, void** out) {
  if (address % bytes != 0) fault(code::misaligned_address, address, "misaligned access");
  has_progress_ = true;
  std::size_t offset = 0;
  unsigned count = 0;
  {
    const auto team = address_space::instance().team_from_kernel(address, bytes, work_->device_ordinal, offset);
    if (team != nullptr) count = team->replicas(offset, bytes, out);
  }
  if (count == 0) fault(code::illegal_address, address, "multicast store without memory bound by every device");
  return count;
}

void block_runner::synchronize() {
  if (must_stop()) abandon();
  current_->now = state::at_barrier;
  ++waiting_;
  current_->stack.leave(false);
  if (must_stop()) abandon();
}

void block_runner::yield() {
  if (must_stop()) abandon();
  if (alive_ > 1) {
    current_->stack.leave(false);
  } else if (++polls_ % 32 == 0) {
    relax();
    has_progress_ = false;
  }
  if (must_stop()) abandon();
}

void block_runner::pause(std::uint64_t ns) {
  if (alive_ > 1 || ns < 1000) return yield();
  const timespec nap{0, static_cast<long>(std::min<std::uint64_t>(ns, 100'000))};
  nanosleep(&nap, nullptr);
  if (must_stop()) abandon();
}

}  // namespace

// How often a block gave its CPU away because all of its threads only polled, since the process began.
PL_SIM_EXPORT unsigned long long peerlaneSimIdleRounds() { return g_idle_rounds.load(std::memory_order_relaxed); }

const sim_abi::kernel_services* kernel_services_table() {
  static constexpr sim_abi::kernel_services kTable = {
      [] { return t_runner->self(); },
      [](std::uint64_t address, std::size_t bytes, bool is_write) { return t_runner->translate(address, bytes, is_write); },
      [] { t_runner->synchronize(); },
      [] { t_runner->yield(); },
      [](std::uint64_t ns) { t_runner->pause(ns); },
      [](std::uint64_t address, std::size_t bytes, void** out) { return t_runner->multicast(address, bytes, out); },
      &g_store_delay_us,
      [](std::uint64_t address, const void* value, std::size_t bytes, bool is_release) {
        return t_runner->take_store(address, value, bytes, is_release);
      },
      [] { t_runner->fence_system(); },
  };
  return &kTable;
}

void run_block(const launch_run& run, std::uint64_t index) {
  thread_local block_runner own;
  t_runner = &own;
  own.run(run, index);
}

}  // namespace pl::sim
