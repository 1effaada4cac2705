// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_engine.hpp"

#include <pthread.h>
#include <sched.h>
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
#include "os/blocked_signals.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

live_counter g_leases{"engine.leases"};
live_counter g_holds{"engine.holds", live_kind::level};

constexpr std::uint64_t kHealthEveryNs = 1'000'000;
constexpr unsigned kSpinsBetweenChecks = 64;  // in a waiting loop, before it reads the clock

void count(std::atomic<std::uint64_t>& counter) noexcept { counter.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t us_to_ticks(std::uint64_t us) { return ticks_per_ms() * us / 1000; }

}  // namespace

gpu_engine::gpu_engine(const gpu_context& context, const options& wanted)
    : context_(context),
      options_(wanted),
      epoch_(claim_process_epoch()),
      lease_ticks_(us_to_ticks(wanted.lease_us)),
      // A descriptor takes about a microsecond to be seen. A thread may lose the CPU in between; `left` covers that
      // case.
      margin_ticks_(us_to_ticks(std::min(10u, wanted.lease_us / 4))) {}

result<std::unique_ptr<gpu_engine>> gpu_engine::open(const gpu_context& context, backend& maps, const options& wanted) {
  if (wanted.lease_us < 20 || wanted.lease_us > 1'000'000)
    return failure{EINVAL, format("a lease of %u us: the GPU engine takes 20 to 1000000", wanted.lease_us)};
  if (auto s = cu::check_launches_return("the copy kernel would leave before it is used"); !s) return s.error();
  options chosen = wanted;
  if (chosen.timeout_ms == 0) chosen.timeout_ms = context.cuda->is_simulated ? 60'000 : 10'000;
  std::unique_ptr<gpu_engine> made(new gpu_engine(context, chosen));
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  auto module = cu::load_kernels(*context.cuda, kernels::gpu_engine());
  if (!module) return module.error();
  made->module_ = *module;
  cu::function_t function = nullptr;
  if (const auto rc = context.cuda->cuModuleGetFunction(&function, *module, "gpu_engine"); rc != cu::error_code::success)
    return cu::make_error(*context.cuda, rc, "finding the GPU engine's kernel");
  for (auto& one : made->kernels_) {
    auto kernel = copy_kernel::make(context, function, maps, wanted.shape);
    if (!kernel) return kernel.error();
    one.kernel = *std::move(kernel);
  }
  return made;
}

gpu_engine::~gpu_engine() {
  if (!belongs_here()) {
    // In a forked child, streams, pinned memory and the keeper are the parent's.
    for (auto& one : kernels_) (void)one.kernel.release();
    (void)lease_thread_.release();
    return;
  }
  {
    const std::lock_guard lock(lease_thread_->mutex);
    lease_thread_->must_stop = true;
    lease_thread_->changed.notify_all();
  }
  if (lease_thread_->thread.joinable()) lease_thread_->thread.join();
  for (auto& one : kernels_) {
    if (one.kernel == nullptr) continue;
    engine::descriptor leave{};
    leave.src_pitch.word = engine::op_leave;
    for (unsigned worker = 0; worker < one.kernel->workers(); ++worker)
      if (one.kernel->is_present(worker) && one.kernel->try_claim(worker)) one.kernel->send(worker, leave);
    one.kernel.reset();  // waits for the kernel
  }
  if (module_ != nullptr && context_.is_alive()) {
    if (auto scope = context_use::enter(context_)) context_.cuda->cuModuleUnload(module_);
  }
}

bool gpu_engine::belongs_here() const noexcept { return process_epoch() == epoch_; }

// ---- Leases -----------------------------------------------------------------------------------------------------------

bool gpu_engine::is_usable(leased_kernel& worker, std::uint64_t now) noexcept {
  const std::uint32_t generation = worker.kernel->generation();
  if (generation == 0 || !worker.kernel->is_present(0)) return false;
  if (worker.greeted.load(std::memory_order_relaxed) != generation) {
    worker.greeted.store(generation, std::memory_order_relaxed);
    // A kernel that waited for room still has its whole lease.
    const std::uint64_t launched = worker.launched_ticks.load(std::memory_order_relaxed);
    if (now - launched > lease_ticks_ / 2) worker.until_ticks.store(now + lease_ticks_ / 2, std::memory_order_relaxed);
  }
  return static_cast<std::int64_t>(worker.until_ticks.load(std::memory_order_relaxed) - now) > 0;
}

gpu_engine::leased_kernel* gpu_engine::usable_kernel(std::uint64_t now) noexcept {
  const unsigned current = current_.load(std::memory_order_relaxed);
  auto& first = kernels_[current];
  auto& second = kernels_[1 - current];
  const bool first_usable = is_usable(first, now);
  if (is_usable(second, now)) {
    // The later lease is used, because the other kernel can end meanwhile.
    const auto ahead = static_cast<std::int64_t>(second.until_ticks.load(std::memory_order_relaxed) -
                                                 first.until_ticks.load(std::memory_order_relaxed));
    if (!first_usable || ahead > 0) {
      current_.store(1 - current, std::memory_order_relaxed);
      return &second;
    }
  }
  return first_usable ? &first : nullptr;
}

bool gpu_engine::is_hot() noexcept { return belongs_here() && usable_kernel(ticks()) != nullptr; }

void gpu_engine::start_quietly() noexcept {
  if (const auto started = start(); !started) PL_LOG(debug, "GPU engine: %s", started.error().message.c_str());
}

status gpu_engine::start() {
  if (!belongs_here())
    return failure{EACCES, "the GPU engine belongs to the parent process: open another one in this child"};
  const std::unique_lock lock(start_mutex_, std::try_to_lock);
  if (!lock) return {};  // another thread is doing it
  if (!context_.is_alive())
    return failure{EIO, "the CUDA context was destroyed, and its GPU engine with it: the next copy opens another"};
  const std::uint64_t now = ticks();
  leased_kernel* idle = nullptr;
  for (auto& one : kernels_) {
    if (one.kernel->is_idle()) {
      idle = &one;
      continue;
    }
    const bool has_started = one.kernel->is_present(0);
    const auto left = static_cast<std::int64_t>(one.until_ticks.load(std::memory_order_relaxed) - now);
    // One kernel that waits for room is enough, and so is one with most of its lease left.
    const std::uint32_t generation = one.kernel->generation();
    if (!has_started && left <= 0 && one.greeted.load(std::memory_order_relaxed) != generation && one.missed != generation) {
      one.missed = generation;
      count(counters_.never_started);
    }
    if (!has_started || left > static_cast<std::int64_t>(lease_ticks_ / 3)) return {};
  }
  if (idle == nullptr) return {};
  const auto launched = idle->kernel->launch(std::uint64_t{options_.lease_us} * 1000);
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
      kernel_(other.kernel_),
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
  auto* const one = usable_kernel(now);
  if (one == nullptr) return count(counters_.not_hot), false;
  // The next kernel is launched in the last third of the lease; it takes about 6 us to start. A keeper thread launches
  // earlier, because the launch costs its caller about 10 us.
  const std::uint64_t last_part =
      lease_thread_->holds.load(std::memory_order_relaxed) != 0 ? lease_ticks_ / 8 : lease_ticks_ / 3;
  if (one->until_ticks.load(std::memory_order_relaxed) - now < last_part) start_quietly();
  // Threads start at different workers, so that they do not all meet at worker 0.
  const unsigned workers = one->kernel->workers();
  for (unsigned i = 0; i < workers; ++i) {
    const unsigned worker = (thread_index() + i) % workers;
    if (one->kernel->is_present(worker) && one->kernel->try_claim(worker)) return out = {one->kernel.get(), worker}, true;
  }
  return count(counters_.all_busy), false;
}

template <class More>
result<gpu_engine::fate> gpu_engine::wait_for(const claim& claimed, std::uint32_t sequence, More&& more) {
  std::uint64_t since_ns = 0;
  std::uint64_t polled_ns = 0;
  // No pause instruction: it would delay the first microseconds of the wait by up to 40 ns.
  for (unsigned spin = 1; !more(); ++spin) {
    if (spin % kSpinsBetweenChecks != 0) continue;
    const auto answer = claimed.kernel->ask(claimed.worker, sequence);
    if (answer == copy_kernel::answer::executed && more()) break;
    if (answer == copy_kernel::answer::left) {
      claimed.kernel->release(claimed.worker);
      count(counters_.left);
      return fate::not_taken;
    }
    if (context_.cuda->is_simulated) sched_yield();
    const std::uint64_t now_ns = monotonic_ns();
    if (since_ns == 0) since_ns = polled_ns = now_ns;
    if (now_ns - polled_ns < kHealthEveryNs) continue;
    polled_ns = now_ns;
    // A worker that does not answer stays claimed: it may still execute the old request, so it gets no other one.
    if (auto healthy = check_health(*claimed.kernel, since_ns); !healthy) return healthy.error();
  }
  claimed.kernel->release(claimed.worker);
  return fate::done;
}

result<gpu_engine::fate> gpu_engine::read_low_latency(void* dst, std::uint64_t src, std::size_t bytes, const head& by_cpu) {
  if (bytes == 0 || bytes > kLowLatencyBytes || by_cpu.bytes >= bytes)
    return failure{EINVAL,
                   format("a low-latency message of %zu bytes, the first %zu by the CPU: it carries 1 to %zu, some of "
                          "them by the engine",
                          bytes, by_cpu.bytes, kLowLatencyBytes)};
  claim claimed;
  if (!belongs_here() || !try_claim(claimed)) return fate::not_taken;
  const std::size_t sent = bytes - by_cpu.bytes;
  engine::descriptor command{};
  command.src = {src + by_cpu.bytes, static_cast<std::uint32_t>(sent), 0};
  command.dst = {claimed.kernel->lines_device(claimed.worker), 1, 0};
  command.src_pitch.word = engine::op_low_latency;
  const std::uint32_t sequence = claimed.kernel->send(claimed.worker, command);
  if (by_cpu.bytes != 0) arch::copy_from(by_cpu.type, dst, by_cpu.data, by_cpu.bytes);
  char* const rest = static_cast<char*>(dst) + by_cpu.bytes;
  const std::byte* const lines = claimed.kernel->lines(claimed.worker);
  std::size_t have = 0;
  auto got = wait_for(claimed, sequence, [&] { return (have = ll_unpack(rest, lines, sequence, have, sent)) == sent; });
  if (got && *got == fate::done) count(counters_.low_latency);
  return got;
}

result<gpu_engine::request> gpu_engine::begin_copy(const transfer& transfer, unsigned workers) {
  request made;
  made.engine_ = this;
  made.refused_ = true;
  const bool by_rows = transfer.rows > 1;
  const std::size_t unit = by_rows ? transfer.rows : transfer.row_bytes;
  if (unit == 0 || transfer.row_bytes == 0 || transfer.row_bytes > UINT32_MAX || transfer.rows > UINT32_MAX ||
      transfer.bytes() > kMaxEngineBytes * engine::kMaxWorkers)
    return failure{EINVAL, format("%zu rows of %zu bytes: the GPU engine takes 1 byte to %zu", transfer.rows,
                                  transfer.row_bytes, kMaxEngineBytes * engine::kMaxWorkers)};
  claim first;
  if (!belongs_here() || !try_claim(first)) return made;
  made.kernel_ = first.kernel;
  std::array<unsigned, engine::kMaxWorkers> mine{first.worker};
  unsigned have = 1;
  const auto wanted = static_cast<unsigned>(std::min<std::size_t>({workers, unit, first.kernel->workers()}));
  for (unsigned worker = 0; worker < first.kernel->workers() && have < wanted; ++worker)
    if (first.kernel->is_present(worker) && first.kernel->try_claim(worker)) mine[have++] = worker;

  // Parts begin on 128-byte lines of the destination's row, so that no two workers write to the same line.
  std::size_t share = (unit + have - 1) / have;
  if (!by_rows) share = (share + 127) / 128 * 128;
  if (share * (by_rows ? transfer.row_bytes : 1) > kMaxEngineBytes) {
    // Too few workers are free to finish the copy near the end of the kernel's lease.
    for (unsigned i = 0; i < have; ++i) first.kernel->release(mine[i]);
    count(counters_.all_busy);
    return made;
  }
  made.refused_ = false;
  first.kernel->publish();
  for (unsigned i = 0; i < have; ++i) {
    const std::size_t begin = std::min(unit, i * share);
    const std::size_t end = std::min(unit, begin + share);
    if (begin == end) {
      first.kernel->release(mine[i]);
      continue;
    }
    const std::uint64_t dst = transfer.dst + begin * (by_rows ? transfer.dst_pitch : 1);
    const std::uint64_t src = transfer.src + begin * (by_rows ? transfer.src_pitch : 1);
    engine::descriptor part{};
    part.src = {src, static_cast<std::uint32_t>(by_rows ? transfer.row_bytes : end - begin), 0};
    part.dst = {dst, static_cast<std::uint32_t>(by_rows ? end - begin : 1), 0};
    part.src_pitch = {transfer.src_pitch, engine::op_copy, 0};
    part.dst_pitch = {transfer.dst_pitch, 0, 0};
    made.sequences_[mine[i]] = first.kernel->post(mine[i], part);
    made.pending_ |= std::uint64_t{1} << mine[i];
  }
  first.kernel->publish();
  return made;
}

result<gpu_engine::request> gpu_engine::begin_list(std::span<const engine::list_entry> pieces) {
  if (pieces.empty() || pieces.size() > engine::kListEntries)
    return failure{EINVAL,
                   format("a list of %zu pieces: the GPU engine takes 1 to %u", pieces.size(), engine::kListEntries)};
  request made;
  made.engine_ = this;
  claim claimed;
  if (!belongs_here() || !try_claim(claimed)) return made.refused_ = true, std::move(made);
  made.kernel_ = claimed.kernel;
  claimed.kernel->write_list(claimed.worker, pieces.data(), pieces.size());
  engine::descriptor command{};
  command.src.low = claimed.kernel->list_device(claimed.worker);
  command.dst.word = static_cast<std::uint32_t>(pieces.size());
  command.src_pitch.word = engine::op_list;
  made.sequences_[claimed.worker] = claimed.kernel->send(claimed.worker, command);
  made.pending_ = std::uint64_t{1} << claimed.worker;
  return made;
}

result<gpu_engine::fate> gpu_engine::gather(std::span<const engine::list_entry> pieces, std::size_t total_bytes,
                                            void (*take)(void*, const std::byte*), void* context) {
  if (pieces.empty() || pieces.size() > engine::kListEntries || total_bytes > 2 * kLowLatencyBytes)
    return failure{EINVAL, format("a list of %zu pieces and %zu bytes: the GPU engine gathers up to %u and %zu",
                                  pieces.size(), total_bytes, engine::kListEntries, 2 * kLowLatencyBytes)};
  claim claimed;
  if (!belongs_here() || !try_claim(claimed)) return fate::not_taken;
  std::array<engine::list_entry, engine::kListEntries> moved;
  std::copy(pieces.begin(), pieces.end(), moved.begin());
  for (std::size_t i = 0; i < pieces.size(); ++i) moved[i].dst += claimed.kernel->lines_device(claimed.worker);
  claimed.kernel->write_list(claimed.worker, moved.data(), pieces.size());
  engine::descriptor command{};
  command.src.low = claimed.kernel->list_device(claimed.worker);
  command.dst.word = static_cast<std::uint32_t>(pieces.size());
  command.src_pitch.word = engine::op_list;
  const std::uint32_t sequence = claimed.kernel->send(claimed.worker, command);
  const auto got = wait_for(claimed, sequence, [&] {
    if (!claimed.kernel->is_done(claimed.worker, sequence)) return false;
    take(context, claimed.kernel->lines(claimed.worker));
    // Plain data in the lines could look like the flags of later messages.
    std::memset(claimed.kernel->lines(claimed.worker), 0, total_bytes);
    return true;
  });
  if (got && *got == fate::done) count(counters_.lists);
  return got;
}

gpu_engine::fate gpu_engine::poll(request& operation) noexcept {
  for (std::uint64_t rest = operation.pending_; rest != 0; rest &= rest - 1) {
    const auto worker = static_cast<unsigned>(__builtin_ctzll(rest));
    const auto answer = operation.kernel_->ask(worker, operation.sequences_[worker]);
    if (answer == copy_kernel::answer::none) continue;
    if (answer == copy_kernel::answer::left) {
      operation.refused_ = true;
      count(counters_.left);
    }
    operation.kernel_->release(worker);
    operation.pending_ &= ~(std::uint64_t{1} << worker);
  }
  if (operation.pending_ != 0) return fate::pending;
  return operation.refused_ ? fate::not_taken : fate::done;
}

result<gpu_engine::fate> gpu_engine::test(request& operation) {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  const fate now = poll(operation);
  if (now != fate::pending) {
    if (now == fate::done) count(counters_.copies);
    return now;
  }
  const std::uint64_t now_ns = monotonic_ns();
  if (operation.stuck_since_ns_ == 0) operation.stuck_since_ns_ = now_ns;
  if (now_ns - operation.stuck_since_ns_ > kHealthEveryNs) {
    if (auto healthy = check_health(*operation.kernel_, operation.stuck_since_ns_); !healthy) {
      abandon(operation);
      return healthy.error();
    }
  }
  return fate::pending;
}

result<gpu_engine::fate> gpu_engine::wait(request& operation) {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};  // its lines are not mapped
  for (;;) {
    for (unsigned spin = 0; spin < kSpinsBetweenChecks; ++spin) {
      const fate now = poll(operation);
      if (now != fate::pending) {
        if (now == fate::done) count(counters_.copies);
        return now;
      }
    }
    auto state = test(operation);
    if (!state || *state != fate::pending) return state;
    if (context_.cuda->is_simulated) sched_yield();
  }
}

// The workers stay claimed for good: they may still write, so they get no other request.
void gpu_engine::abandon(request& operation) noexcept { operation.pending_ = 0; }

status gpu_engine::check_health(copy_kernel& kernel, std::uint64_t waiting_since_ns) const {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  if (!context_.is_alive())
    return failure{EIO, "the CUDA context was destroyed while the GPU engine copied in it: the copy is incomplete"};
  const auto rc = kernel.query();
  if (rc != cu::error_code::success && rc != cu::error_code::not_ready)
    return cu::make_error(*context_.cuda, rc, "the GPU engine's kernel");
  const std::uint64_t waited_ms = (monotonic_ns() - waiting_since_ns) / 1'000'000;
  if (waited_ms > options_.timeout_ms)
    return failure{ETIMEDOUT, format("the GPU engine has not answered for %u ms: the GPU hangs or another process has it; "
                                     "the copy may still happen",
                                     options_.timeout_ms)};
  return {};
}

// ---- Holds ------------------------------------------------------------------------------------------------------------

result<gpu_engine::hold> gpu_engine::keep_hot() {
  if (!belongs_here()) return failure{EACCES, "the GPU engine belongs to the parent process"};
  if (auto started = start(); !started) return started.error();
  const std::lock_guard lock(lease_thread_->mutex);
  if (!lease_thread_->thread.joinable()) {
    auto kept = try_start_thread("keeps the GPU engine resident", [this] { keep(); });
    if (!kept) return kept.error();
    lease_thread_->thread = *std::move(kept);
  }
  ++lease_thread_->holds;
  g_holds.add();
  lease_thread_->changed.notify_all();
  return hold(this);
}

void gpu_engine::keep() noexcept {
  pthread_setname_np(pthread_self(), "pl-engine");
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default is 50 us, a quarter of a lease
  std::unique_lock lock(lease_thread_->mutex);
  while (!lease_thread_->must_stop) {
    if (lease_thread_->holds == 0) {
      lease_thread_->changed.wait(lock);
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
  const std::lock_guard lock(lease_thread_->mutex);
  --lease_thread_->holds;
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
