// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/live_counter.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "copy/ll_unpack.hpp"
#include "copy/thread_index.hpp"
#include "cuda/kernel_image.hpp"
#include "gpu_engine_image.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

live_counter g_leases{"engine.leases"};
live_counter g_holds{"engine.holds", live_kind::level};

constexpr std::uint64_t kHealthEveryNs = 1'000'000;
constexpr unsigned kSpinsBetweenLooks = 64;  // of a waiting loop, before it asks the clock

void count(std::atomic<std::uint64_t>& counter) noexcept { counter.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t us_to_ticks(std::uint64_t us) { return ticks_per_ms() * us / 1000; }

}  // namespace

gpu_engine::gpu_engine(const gpu_context& context, const options& wanted)
    : context_(context),
      options_(wanted),
      epoch_(claim_process_epoch()),
      lease_ticks_(us_to_ticks(wanted.lease_us)),
      // A descriptor takes about a microsecond to be seen; a thread may lose the CPU in between, which is what `left` is
      // for.
      margin_ticks_(us_to_ticks(std::min(10u, wanted.lease_us / 4))) {}

result<std::unique_ptr<gpu_engine>> gpu_engine::open(const gpu_context& context, backend& maps, const options& wanted) {
  if (wanted.lease_us < 20 || wanted.lease_us > 1'000'000)
    return failure{EINVAL, format("a lease of %u us: the GPU engine takes 20 to 1000000", wanted.lease_us)};
  std::unique_ptr<gpu_engine> made(new gpu_engine(context, wanted));
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  auto module = cu::load_kernels(*context.cuda, kernels::gpu_engine());
  if (!module) return module.error();
  made->module_ = *module;
  cu::function_t kernel = nullptr;
  if (const auto rc = context.cuda->cuModuleGetFunction(&kernel, *module, "gpu_engine"); rc != cu::error_code::success)
    return cu::make_error(*context.cuda, rc, "finding the GPU engine's kernel");
  for (auto& one : made->posts_) {
    auto crew = engine_crew::make(context, kernel, maps, wanted.shape);
    if (!crew) return crew.error();
    one.crew = *std::move(crew);
  }
  return made;
}

gpu_engine::~gpu_engine() {
  if (!belongs_here()) {
    // A forked child: streams, pinned memory and the keeper are the parent's.
    for (auto& one : posts_) (void)one.crew.release();
    (void)keeper_.release();
    return;
  }
  {
    const std::lock_guard lock(keeper_->mutex);
    keeper_->must_stop = true;
    keeper_->changed.notify_all();
  }
  if (keeper_->thread.joinable()) keeper_->thread.join();
  for (auto& one : posts_) {
    if (one.crew == nullptr) continue;
    engine::descriptor leave{};
    leave.src_pitch.word = engine::op_leave;
    for (unsigned worker = 0; worker < one.crew->workers(); ++worker)
      if (one.crew->is_present(worker) && one.crew->try_claim(worker)) one.crew->send(worker, leave);
    one.crew.reset();  // waits for the kernel
  }
  if (module_ != nullptr && context_.is_alive()) {
    if (auto scope = context_use::enter(context_)) context_.cuda->cuModuleUnload(module_);
  }
}

bool gpu_engine::belongs_here() const noexcept { return process_epoch() == epoch_; }

// ---- Leases -----------------------------------------------------------------------------------------------------------

bool gpu_engine::is_usable(post& which, std::uint64_t now) noexcept {
  const std::uint32_t generation = which.crew->generation();
  if (generation == 0 || !which.crew->is_present(0)) return false;
  if (which.greeted.load(std::memory_order_relaxed) != generation) {
    which.greeted.store(generation, std::memory_order_relaxed);
    // A kernel that waited for room has its lease still before it.
    const std::uint64_t launched = which.launched_ticks.load(std::memory_order_relaxed);
    if (now - launched > lease_ticks_ / 2) which.until_ticks.store(now + lease_ticks_ / 2, std::memory_order_relaxed);
  }
  return static_cast<std::int64_t>(which.until_ticks.load(std::memory_order_relaxed) - now) > 0;
}

gpu_engine::post* gpu_engine::usable_post(std::uint64_t now) noexcept {
  const unsigned current = current_.load(std::memory_order_relaxed);
  auto& first = posts_[current];
  auto& second = posts_[1 - current];
  const bool first_usable = is_usable(first, now);
  if (is_usable(second, now)) {
    // The younger lease is the one to use: the other can end meanwhile.
    const auto ahead = static_cast<std::int64_t>(second.until_ticks.load(std::memory_order_relaxed) -
                                                 first.until_ticks.load(std::memory_order_relaxed));
    if (!first_usable || ahead > 0) {
      current_.store(1 - current, std::memory_order_relaxed);
      return &second;
    }
  }
  return first_usable ? &first : nullptr;
}

bool gpu_engine::is_hot() noexcept { return belongs_here() && usable_post(ticks()) != nullptr; }

void gpu_engine::start_quietly() noexcept {
  if (const auto started = start(); !started) PL_LOG(debug, "GPU engine: %s", started.error().message.c_str());
}

status gpu_engine::start() {
  if (!belongs_here())
    return failure{EACCES, "the GPU engine belongs to the parent process: open another one in this child"};
  const std::unique_lock lock(start_mutex_, std::try_to_lock);
  if (!lock) return {};  // another thread is at it
  if (!context_.is_alive())
    return failure{EIO, "the CUDA context was destroyed: the GPU engine in it is gone, the next copy opens another"};
  const std::uint64_t now = ticks();
  post* idle = nullptr;
  for (auto& one : posts_) {
    if (one.crew->is_idle()) {
      idle = &one;
      continue;
    }
    const bool has_started = one.crew->is_present(0);
    const auto left = static_cast<std::int64_t>(one.until_ticks.load(std::memory_order_relaxed) - now);
    // One kernel that waits for room is enough, and one with most of its lease before it.
    const std::uint32_t generation = one.crew->generation();
    if (!has_started && left <= 0 && one.greeted.load(std::memory_order_relaxed) != generation && one.missed != generation) {
      one.missed = generation;
      count(counters_.never_started);
    }
    if (!has_started || left > static_cast<std::int64_t>(lease_ticks_ / 3)) return {};
  }
  if (idle == nullptr) return {};
  const auto launched = idle->crew->launch(std::uint64_t{options_.lease_us} * 1000);
  if (!launched) return launched;
  count(counters_.launches);
  g_leases.add();
  idle->launched_ticks.store(now, std::memory_order_relaxed);
  idle->until_ticks.store(now + lease_ticks_ - margin_ticks_, std::memory_order_relaxed);
  return {};
}

status gpu_engine::start_and_wait(unsigned timeout_us) {
  const std::uint64_t deadline = monotonic_ns() + std::uint64_t{timeout_us} * 1000;
  while (!is_hot()) {
    if (auto started = start(); !started) return started;
    if (monotonic_ns() > deadline)
      return failure{ETIMEDOUT,
                     format("the GPU engine did not start within %u us: other kernels occupy the whole GPU", timeout_us)};
    if (context_.cuda->is_simulated) sched_yield();
    else arch::relax();
  }
  return {};
}

// ---- Requests ---------------------------------------------------------------------------------------------------------

gpu_engine::request::request(request&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      crew_(other.crew_),
      pending_(std::exchange(other.pending_, 0)),
      stuck_since_ns_(other.stuck_since_ns_),
      refused_(other.refused_),
      sequences_(other.sequences_) {}

gpu_engine::request& gpu_engine::request::operator=(request&& other) noexcept {
  if (this != &other) {
    this->~request();
    new (this) request(std::move(other));
  }
  return *this;
}

gpu_engine::request::~request() {
  if (engine_ != nullptr && pending_ != 0) (void)engine_->wait(*this);
}

bool gpu_engine::try_claim(claim& out) noexcept {
  const std::uint64_t now = ticks();
  auto* const one = usable_post(now);
  if (one == nullptr) return count(counters_.not_hot), false;
  // In the last third of the lease the relief is called, which takes about 6 us to be there. A keeper sees to that first:
  // the launch costs its caller some 10 us.
  const std::uint64_t last_part = keeper_->holds.load(std::memory_order_relaxed) != 0 ? lease_ticks_ / 8 : lease_ticks_ / 3;
  if (one->until_ticks.load(std::memory_order_relaxed) - now < last_part) start_quietly();
  // Threads begin at places of their own, so that they do not all meet at worker 0.
  const unsigned workers = one->crew->workers();
  for (unsigned i = 0; i < workers; ++i) {
    const unsigned worker = (thread_index() + i) % workers;
    if (one->crew->is_present(worker) && one->crew->try_claim(worker)) return out = {one->crew.get(), worker}, true;
  }
  return count(counters_.all_busy), false;
}

template <class More>
result<gpu_engine::fate> gpu_engine::wait_for(const claim& at, std::uint32_t sequence, More&& more) {
  std::uint64_t since_ns = 0;
  std::uint64_t looked_ns = 0;
  // No pause instruction: it would cost the first microseconds up to 40 ns of what is waited for.
  for (unsigned spin = 1; !more(); ++spin) {
    if (spin % kSpinsBetweenLooks != 0) continue;
    const auto answer = at.crew->ask(at.worker, sequence);
    if (answer == engine_crew::answer::executed && more()) break;
    if (answer == engine_crew::answer::left) {
      at.crew->release(at.worker);
      count(counters_.left);
      return fate::not_taken;
    }
    if (context_.cuda->is_simulated) sched_yield();
    const std::uint64_t now_ns = monotonic_ns();
    if (since_ns == 0) since_ns = looked_ns = now_ns;
    if (now_ns - looked_ns < kHealthEveryNs) continue;
    looked_ns = now_ns;
    // A worker that does not answer keeps its claim: what it does later must meet nobody else's request.
    if (auto healthy = check_health(*at.crew, since_ns); !healthy) return healthy.error();
  }
  at.crew->release(at.worker);
  return fate::done;
}

result<gpu_engine::fate> gpu_engine::read_low_latency(void* dst, std::uint64_t src, std::size_t bytes, const head& by_cpu) {
  if (bytes == 0 || bytes > kLowLatencyBytes || by_cpu.bytes >= bytes)
    return failure{EINVAL,
                   format("a low-latency message of %zu bytes, the first %zu by the CPU: it carries 1 to %zu, some of "
                          "them by the engine",
                          bytes, by_cpu.bytes, kLowLatencyBytes)};
  claim at;
  if (!belongs_here() || !try_claim(at)) return fate::not_taken;
  const std::size_t sent = bytes - by_cpu.bytes;
  engine::descriptor what{};
  what.src = {src + by_cpu.bytes, static_cast<std::uint32_t>(sent), 0};
  what.dst = {at.crew->lines_device(at.worker), 1, 0};
  what.src_pitch.word = engine::op_low_latency;
  const std::uint32_t sequence = at.crew->send(at.worker, what);
  if (by_cpu.bytes != 0) arch::copy_from(by_cpu.type, dst, by_cpu.data, by_cpu.bytes);
  char* const rest = static_cast<char*>(dst) + by_cpu.bytes;
  const std::byte* const lines = at.crew->lines(at.worker);
  std::size_t have = 0;
  auto got = wait_for(at, sequence, [&] { return (have = ll_unpack(rest, lines, sequence, have, sent)) == sent; });
  if (got && *got == fate::done) count(counters_.low_latency);
  return got;
}

result<gpu_engine::request> gpu_engine::begin_copy(const transfer& what, unsigned workers) {
  request made;
  made.engine_ = this;
  made.refused_ = true;
  const bool by_rows = what.rows > 1;
  const std::size_t unit = by_rows ? what.rows : what.row_bytes;
  if (unit == 0 || what.row_bytes == 0 || what.row_bytes > UINT32_MAX || what.rows > UINT32_MAX ||
      what.bytes() > kMostEngineBytes * engine::kMostWorkers)
    return failure{EINVAL, format("%zu rows of %zu bytes: the GPU engine takes 1 byte to %zu", what.rows, what.row_bytes,
                                  kMostEngineBytes * engine::kMostWorkers)};
  claim first;
  if (!belongs_here() || !try_claim(first)) return made;
  made.crew_ = first.crew;
  std::array<unsigned, engine::kMostWorkers> mine{first.worker};
  unsigned have = 1;
  const auto wanted = static_cast<unsigned>(std::min<std::size_t>({workers, unit, first.crew->workers()}));
  for (unsigned worker = 0; worker < first.crew->workers() && have < wanted; ++worker)
    if (first.crew->is_present(worker) && first.crew->try_claim(worker)) mine[have++] = worker;

  // Parts begin on 128-byte lines of the destination's row, so that no two workers write to one.
  std::size_t share = (unit + have - 1) / have;
  if (!by_rows) share = (share + 127) / 128 * 128;
  if (share * (by_rows ? what.row_bytes : 1) > kMostEngineBytes) {
    // Too few workers are free for a copy that one kernel should still end near its lease.
    for (unsigned i = 0; i < have; ++i) first.crew->release(mine[i]);
    count(counters_.all_busy);
    return made;
  }
  made.refused_ = false;
  first.crew->publish();
  for (unsigned i = 0; i < have; ++i) {
    const std::size_t begin = std::min(unit, i * share);
    const std::size_t end = std::min(unit, begin + share);
    if (begin == end) {
      first.crew->release(mine[i]);
      continue;
    }
    const std::uint64_t dst = what.dst + begin * (by_rows ? what.dst_pitch : 1);
    const std::uint64_t src = what.src + begin * (by_rows ? what.src_pitch : 1);
    engine::descriptor part{};
    part.src = {src, static_cast<std::uint32_t>(by_rows ? what.row_bytes : end - begin), 0};
    part.dst = {dst, static_cast<std::uint32_t>(by_rows ? end - begin : 1), 0};
    part.src_pitch = {what.src_pitch, engine::op_copy, 0};
    part.dst_pitch = {what.dst_pitch, 0, 0};
    made.sequences_[mine[i]] = first.crew->post(mine[i], part);
    made.pending_ |= std::uint64_t{1} << mine[i];
  }
  first.crew->publish();
  return made;
}

result<gpu_engine::request> gpu_engine::begin_list(std::span<const engine::list_entry> pieces) {
  if (pieces.empty() || pieces.size() > engine::kListEntries)
    return failure{EINVAL,
                   format("a list of %zu pieces: the GPU engine takes 1 to %u", pieces.size(), engine::kListEntries)};
  request made;
  made.engine_ = this;
  claim at;
  if (!belongs_here() || !try_claim(at)) return made.refused_ = true, std::move(made);
  made.crew_ = at.crew;
  at.crew->write_list(at.worker, pieces.data(), pieces.size());
  engine::descriptor what{};
  what.src.low = at.crew->list_device(at.worker);
  what.dst.word = static_cast<std::uint32_t>(pieces.size());
  what.src_pitch.word = engine::op_list;
  made.sequences_[at.worker] = at.crew->send(at.worker, what);
  made.pending_ = std::uint64_t{1} << at.worker;
  return made;
}

result<gpu_engine::fate> gpu_engine::gather(std::span<const engine::list_entry> pieces, std::size_t total_bytes,
                                            void (*take)(void*, const std::byte*), void* context) {
  if (pieces.empty() || pieces.size() > engine::kListEntries || total_bytes > 2 * kLowLatencyBytes)
    return failure{EINVAL, format("a list of %zu pieces and %zu bytes: the GPU engine gathers up to %u and %zu",
                                  pieces.size(), total_bytes, engine::kListEntries, 2 * kLowLatencyBytes)};
  claim at;
  if (!belongs_here() || !try_claim(at)) return fate::not_taken;
  std::array<engine::list_entry, engine::kListEntries> moved;
  std::copy(pieces.begin(), pieces.end(), moved.begin());
  for (std::size_t i = 0; i < pieces.size(); ++i) moved[i].dst += at.crew->lines_device(at.worker);
  at.crew->write_list(at.worker, moved.data(), pieces.size());
  engine::descriptor what{};
  what.src.low = at.crew->list_device(at.worker);
  what.dst.word = static_cast<std::uint32_t>(pieces.size());
  what.src_pitch.word = engine::op_list;
  const std::uint32_t sequence = at.crew->send(at.worker, what);
  const auto got = wait_for(at, sequence, [&] {
    if (!at.crew->is_done(at.worker, sequence)) return false;
    take(context, at.crew->lines(at.worker));
    // Plain data in the lines could look like the flags of messages to come.
    std::memset(at.crew->lines(at.worker), 0, total_bytes);
    return true;
  });
  if (got && *got == fate::done) count(counters_.lists);
  return got;
}

gpu_engine::fate gpu_engine::look(request& which) noexcept {
  for (std::uint64_t rest = which.pending_; rest != 0; rest &= rest - 1) {
    const auto worker = static_cast<unsigned>(__builtin_ctzll(rest));
    const auto answer = which.crew_->ask(worker, which.sequences_[worker]);
    if (answer == engine_crew::answer::none) continue;
    if (answer == engine_crew::answer::left) {
      which.refused_ = true;
      count(counters_.left);
    }
    which.crew_->release(worker);
    which.pending_ &= ~(std::uint64_t{1} << worker);
  }
  if (which.pending_ != 0) return fate::pending;
  return which.refused_ ? fate::not_taken : fate::done;
}

result<gpu_engine::fate> gpu_engine::test(request& which) {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  const fate now = look(which);
  if (now != fate::pending) {
    if (now == fate::done) count(counters_.copies);
    return now;
  }
  const std::uint64_t now_ns = monotonic_ns();
  if (which.stuck_since_ns_ == 0) which.stuck_since_ns_ = now_ns;
  if (now_ns - which.stuck_since_ns_ > kHealthEveryNs) {
    if (auto healthy = check_health(*which.crew_, which.stuck_since_ns_); !healthy) {
      abandon(which);
      return healthy.error();
    }
  }
  return fate::pending;
}

result<gpu_engine::fate> gpu_engine::wait(request& which) {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};  // its lines are not mapped
  for (;;) {
    for (unsigned spin = 0; spin < kSpinsBetweenLooks; ++spin) {
      const fate now = look(which);
      if (now != fate::pending) {
        if (now == fate::done) count(counters_.copies);
        return now;
      }
    }
    auto state = test(which);
    if (!state || *state != fate::pending) return state;
    if (context_.cuda->is_simulated) sched_yield();
  }
}

// The workers keep their claims for good: they may still write, and nobody may give them something else.
void gpu_engine::abandon(request& which) noexcept { which.pending_ = 0; }

status gpu_engine::check_health(engine_crew& crew, std::uint64_t waiting_since_ns) const {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  if (!context_.is_alive())
    return failure{EIO, "the CUDA context was destroyed while the GPU engine copied in it: the copy is incomplete"};
  const auto rc = crew.query();
  if (rc != cu::error_code::success && rc != cu::error_code::not_ready)
    return cu::make_error(*context_.cuda, rc, "the GPU engine's kernel");
  const std::uint64_t waited_ms = (monotonic_ns() - waiting_since_ns) / 1'000'000;
  if (waited_ms > options_.patience_ms)
    return failure{ETIMEDOUT, format("the GPU engine has not answered for %u ms: the GPU hangs or another process has it; "
                                     "the copy may still happen",
                                     options_.patience_ms)};
  return {};
}

// ---- Holds ------------------------------------------------------------------------------------------------------------

result<gpu_engine::hold> gpu_engine::keep_hot() {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  if (auto started = start(); !started) return started.error();
  const std::lock_guard lock(keeper_->mutex);
  if (!keeper_->thread.joinable()) {
    // Signals are for the application's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    keeper_->thread = std::thread([this] { keep(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ++keeper_->holds;
  g_holds.add();
  keeper_->changed.notify_all();
  return hold(this);
}

void gpu_engine::keep() noexcept {
  pthread_setname_np(pthread_self(), "pl-engine");
  prctl(PR_SET_TIMERSLACK, 1UL);  // 50 us by default, a quarter of a lease
  std::unique_lock lock(keeper_->mutex);
  while (!keeper_->must_stop) {
    if (keeper_->holds == 0) {
      keeper_->changed.wait(lock);
      continue;
    }
    lock.unlock();
    start_quietly();  // does nothing while most of the lease is left
    const timespec pause{0, static_cast<long>(std::max(10u, options_.lease_us / 6)) * 1000};
    nanosleep(&pause, nullptr);
    lock.lock();
  }
}

void gpu_engine::drop_hold() noexcept {
  if (!belongs_here()) return;
  const std::lock_guard lock(keeper_->mutex);
  --keeper_->holds;
  g_holds.add(-1);
}

gpu_engine::hold::~hold() {
  if (engine_ != nullptr) engine_->drop_hold();
}

gpu_engine::statistics gpu_engine::counts() const noexcept {
  const auto get = [](const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  return {get(counters_.launches), get(counters_.low_latency), get(counters_.copies), get(counters_.lists),
          get(counters_.not_hot),  get(counters_.all_busy),    get(counters_.left),   get(counters_.never_started)};
}

}  // namespace pl::copy
