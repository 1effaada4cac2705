// SPDX-License-Identifier: Apache-2.0
#include "copy/completion.hpp"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <system_error>

#include "copy/planner_impl.hpp"
#include "os/blocked_signals.hpp"

namespace pl::copy {

struct completion::job {
  std::vector<transfer> list;
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<bool> done{false};
  status outcome;
  std::shared_ptr<wake_descriptor> wake;  // guarded by the mutex
};

// ---- Starting ----------------------------------------------------------------------------------------------------------

namespace {

// Up to this size a direct copy costs the caller no more than handing it to another executor.
constexpr std::size_t kAtOnceBytes = 16u << 10;
constexpr std::size_t kMaxChannelBytes = 4u << 20;

// How long the queue's thread sleeps between checks of a stream, and after how many checks it asks whether the stream
// still lives, which polls for a millisecond: about every 50 ms.
constexpr timespec kPollPause{0, 50'000};
constexpr unsigned kPollsBetweenLivenessChecks = 500;

}  // namespace

// Runs the queue in order, except that work without a stream dependency may overtake work that waits for a stream: the
// stream may depend on it.
void planner::run_queue() {
  pthread_setname_np(pthread_self(), "pl-copy-queue");
  auto& queue = shared_->queue;
  std::unique_lock lock(shared_->queue_mutex);
  for (unsigned polls = 1;;) {
    status reached;
    auto next = std::find_if(queue.begin(), queue.end(),
                             [](const auto& one) { return one.dma == nullptr || one.dma->is_done(one.behind); });
    if (next == queue.end() && !queue.empty()) {
      // Only this thread removes entries, and references stay valid when other threads add some.
      auto& waiting = queue[polls % queue.size()];
      lock.unlock();
      nanosleep(&kPollPause, nullptr);
      if (++polls % kPollsBetweenLivenessChecks == 0) reached = waiting.dma->wait(waiting.behind, 1);
      lock.lock();
      if (reached || reached.code() == ETIMEDOUT) continue;
      next = std::find_if(queue.begin(), queue.end(), [&](const auto& one) { return &one == &waiting; });
    }
    if (next != queue.end()) {
      auto run = std::move(next->run);
      queue.erase(next);
      lock.unlock();
      run(reached);
      run = nullptr;  // destroys its captures outside of the lock
      lock.lock();
    } else if (shared_->stop) {
      return;
    } else {
      shared_->queue_changed.wait(lock);
    }
  }
}

status planner::enqueue(std::function<void(const status&)> run, copy_engine* dma, const copy_engine::ticket& behind) {
  const std::lock_guard lock(shared_->queue_mutex);
  if (!shared_->runner.joinable()) {
    auto started = try_start_thread("copies by CPU", [this] { run_queue(); });
    if (!started) return started.error();
    shared_->runner = *std::move(started);
  }
  shared_->queue.push_back({std::move(run), dma, behind});
  shared_->queue_changed.notify_one();
  return {};
}

result<gpu_checksum::job> planner::begin_checksum(const cu::pointer_info& device, std::uint64_t src, std::size_t bytes,
                                                  const async_options& wanted) {
  if (!is_mine()) return failure{EACCES, "a planner of the parent process: open one in this process"};
  auto state = state_of(device);
  if (!state) return state.error();
  auto summer = (*state)->checksum();
  if (!summer) return summer.error();
  return (*summer)->begin(src, bytes, wanted.after, wanted.has_after);
}

result<completion> planner::begin(std::span<const transfer> list, const async_options& wanted) {
  if (std::any_of(list.begin(), list.end(), is_empty)) return begin(without_empty(list), wanted);
  // All copies are checked before any is queued. A later refusal would have to wait for the queued copies, and those
  // may wait for a stream that waits for the caller.
  std::vector<sides> inspected(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (auto good = inspect(list[i], inspected[i]); !good) return good.error();
    inspect_other(list[i], inspected[i]);
  }
  completion made;
  made.owner_ = this;
  const bool goes_behind = wanted.has_after && is_for_channel_behind(list, inspected);
  if (goes_behind || (!wanted.has_after && is_for_channel(list))) {
    auto begun = begin_on_channel(list, inspected[0], goes_behind ? &wanted.after : nullptr);
    if (!begun && begun.code() != EAGAIN) return begun.error();
    if (begun) {
      auto state = state_of(inspected[0].list_mover());
      if (state) made.state_ = *state;
      made.on_channel_.push_back(*std::move(begun));
      return made;
    }
  }
  std::vector<transfer> by_cpu;  // copies that need a CPU, or are faster with one
  gpu_state* cpu_state = nullptr;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& transfer = list[i];
    auto& ends = inspected[i];
    auto state = state_of(ends.way == direction::on_device ? ends.source : ends.device);
    if (!state) return state.error();
    if (made.state_ == nullptr) made.state_ = *state;
    const bool gpu_alone = ends.other != other_side::pageable;
    if (!gpu_alone || (!wanted.has_after && transfer.bytes() <= kAtOnceBytes)) {
      by_cpu.push_back(transfer);
      if (cpu_state == nullptr) cpu_state = *state;
      continue;
    }
    if (!wanted.has_after && transfer.rows == 1) {
      choice option = choose(transfer, ends);
      option.width = static_cast<std::uint8_t>(std::max<unsigned>(option.width, wanted.least_workers));
      if (auto given = option.kind == method::engine_copy ? give_to_engine(option, transfer, ends) : std::nullopt) {
        made.given_.push_back({given->first, std::move(given->second), transfer});
        continue;
      }
      // Longer copies use CUDA, whose streams other streams can wait for; a channel gains nothing there.
      if (option.kind == method::dma_channel && transfer.bytes() <= kMaxChannelBytes)
        if (auto begun = give_to_channel(transfer, ends)) {
          made.on_channel_.push_back(*std::move(begun));
          count(method::dma_channel, transfer.bytes());
          continue;
        }
    }
    auto dma = (*state)->dma();
    if (!dma) return dma.error();
    auto ticket = (*dma)->submit(std::span(&transfer, 1), wanted.after, wanted.has_after, wanted.turn);
    if (!ticket) return ticket.error();
    made.queued_.push_back({*dma, *ticket});
    count(method::copy_engine, transfer.bytes());
  }
  if (by_cpu.empty()) return made;

  std::size_t total = 0;
  for (const auto& transfer : by_cpu) total += transfer.bytes();
  if (!wanted.has_after && total <= kAtOnceBytes) {
    if (auto done = copy_list(by_cpu); !done) return done.error();
    return made;
  }
  copy_engine* dma = nullptr;
  copy_engine::ticket behind;
  if (wanted.has_after) {
    auto opened = cpu_state->dma();
    if (!opened) return opened.error();
    auto mark = (*opened)->submit({}, wanted.after, true);
    if (!mark) return mark.error();
    dma = *opened;
    behind = *mark;
  }
  auto job = std::make_shared<completion::job>();
  job->list = std::move(by_cpu);
  auto queued = enqueue(
      [this, job](const status& reached) {
        status outcome = reached ? copy_list(job->list) : reached;
        const std::lock_guard lock(job->mutex);
        job->outcome = std::move(outcome);
        job->done.store(true, std::memory_order_release);
        job->ended.notify_all();
        if (job->wake != nullptr) job->wake->signal();
      },
      dma, behind);
  if (!queued) return queued.error();
  made.job_ = std::move(job);  // a completion waits for its job
  return made;
}

std::optional<std::pair<gpu_engine*, gpu_engine::request>> planner::give_to_engine(const choice& option,
                                                                                   const transfer& transfer, sides& ends) {
  auto engine = open_engine(ends);
  if (!engine) return std::nullopt;
  copy::transfer moved = transfer;
  if (ends.way == direction::to_host) moved.dst = ends.host.device_ptr;
  else if (ends.way == direction::to_device) moved.src = ends.host.device_ptr;
  else if (ends.device.context != ends.source.context) return std::nullopt;
  auto begun = (*engine)->begin_copy(moved, option.width);
  if (!begun) return std::nullopt;
  return std::pair{*engine, *std::move(begun)};
}

// ---- Ending --------------------------------------------------------------------------------------------------------------

completion& completion::operator=(completion&& other) noexcept {
  if (this != &other) {
    (void)wait();
    owner_ = other.owner_;
    state_ = other.state_;
    queued_ = std::move(other.queued_);
    given_ = std::move(other.given_);
    on_channel_ = std::move(other.on_channel_);
    job_ = std::move(other.job_);
    wake_ = std::move(other.wake_);
    other.queued_.clear();
    other.given_.clear();
    other.on_channel_.clear();
  }
  return *this;
}

completion::~completion() { (void)wait(); }

// An event that is given back goes to another copy, which must not wake this one's descriptor.
void completion::drop_channel_part() noexcept {
  if (const int fd = on_channel_.back().descriptor(); fd >= 0 && wake_ != nullptr) wake_->unwatch(fd);
  on_channel_.pop_back();
}

result<int> completion::descriptor() {
  if (!is_empty() && !owner_->is_mine()) return failure{EACCES, "these copies are the parent process's"};
  if (wake_ != nullptr) return wake_->get();
  auto made = wake_descriptor::open();
  if (!made) return made.error();
  const std::shared_ptr<wake_descriptor>& wake = *made;
  std::uint64_t period_ns = 0;
  const auto tick = [&](std::uint64_t wanted_ns) {
    period_ns = period_ns == 0 ? wanted_ns : std::min(period_ns, wanted_ns);
  };
  constexpr std::uint64_t kNoEventNs = 1'000'000, kKernelNs = 200'000;
  for (auto& one : on_channel_) {
    const auto fd = one.make_descriptor();
    tick(fd && wake->watch(*fd) ? dma::completion_event::kRecheckNs : kNoEventNs);
  }
  if (!given_.empty()) tick(kKernelNs);
  for (const auto& one : queued_)
    if (auto done = owner_->enqueue([wake](const status&) { wake->signal(); }, one.dma, one.ticket); !done)
      return done.error();
  if (job_ != nullptr) {
    const std::lock_guard lock(job_->mutex);
    if (job_->done.load(std::memory_order_relaxed)) wake->signal();
    else job_->wake = wake;
  }
  if (is_empty()) wake->signal();
  else if (period_ns != 0) wake->tick(period_ns);
  wake_ = wake;
  return wake_->get();
}

// A copy that the GPU engine did not take is done here by another method.
status completion::end(const result<gpu_engine::fate>& fate, const transfer& transfer) {
  if (!fate) return fate.error();
  if (*fate == gpu_engine::fate::not_taken) {
    owner_->count_refusal({method::engine_copy, 1});
    return owner_->copy(transfer);
  }
  owner_->count(method::engine_copy, transfer.bytes());
  return {};
}

result<bool> completion::poll() {
  while (!given_.empty()) {
    auto& last = given_.back();
    auto fate = last.engine->test(last.request);
    if (fate && *fate == gpu_engine::fate::pending) return false;
    const transfer transfer = last.piece;
    given_.pop_back();
    if (auto ended = end(fate, transfer); !ended) return ended.error();
  }
  while (!on_channel_.empty()) {
    const auto ended = on_channel_.back().test();
    if (ended && !*ended) return false;
    drop_channel_part();
    if (!ended) return ended.error();
  }
  while (!queued_.empty()) {
    if (!queued_.back().dma->is_done(queued_.back().ticket)) return false;
    queued_.pop_back();
  }
  if (job_ != nullptr) {
    if (!job_->done.load(std::memory_order_acquire)) return false;
    const status outcome = job_->outcome;
    job_.reset();
    if (!outcome) return outcome.error();
  }
  return true;
}

result<bool> completion::test() {
  if (!is_empty() && !owner_->is_mine()) return wait().error();
  if (wake_ != nullptr && !is_empty()) wake_->clear();
  auto state = poll();
  if (!state) (void)wait();  // the others end too: a failure leaves nothing in flight
  if (is_empty()) wake_.reset();
  return state;
}

status completion::wait() {
  if (is_empty()) return {};
  if (!owner_->is_mine()) {
    // In a forked child the thread that would finish the job does not exist, and a missing thread may hold its lock.
    if (job_ != nullptr) new std::shared_ptr<job>(std::move(job_));
    given_.clear();
    queued_.clear();
    for (auto& one : on_channel_) new dma_engine::operation(std::move(one));  // leaked: its memory is the parent's
    on_channel_.clear();
    return failure{EACCES, "these copies are the parent process's"};
  }
  status outcome;
  const auto keep_first = [&](status one) {
    if (outcome && !one) outcome = std::move(one);
  };
  for (auto& one : given_) keep_first(end(one.engine->wait(one.request), one.piece));
  given_.clear();
  for (auto& one : on_channel_) keep_first(one.wait());
  while (!on_channel_.empty()) drop_channel_part();
  for (auto& one : queued_) keep_first(one.dma->wait(one.ticket));
  queued_.clear();
  if (job_ != nullptr) {
    const auto last = std::move(job_);
    std::unique_lock lock(last->mutex);
    last->ended.wait(lock, [&] { return last->done.load(std::memory_order_acquire); });
    keep_first(last->outcome);
  }
  wake_.reset();
  return outcome;
}

status completion::make_wait(cu::stream_t stream) {
  if (is_empty()) return {};
  const bool by_channel = on_channel_.empty() || owner_->orders_by_channel_;
  if (!by_channel || !given_.empty() || job_ != nullptr || !owner_->is_mine()) return wait();
  for (const auto& one : on_channel_) {
    auto made = one.make_wait(stream);
    if (!made && made.code() == EBUSY) return made;
    // Reports what is wrong with the copies, or recovers from what is wrong with the stream's wait.
    if (!made) return wait();
  }
  for (const auto& one : queued_)
    if (auto made = one.dma->make_wait(stream, one.ticket); !made) return made;
  return {};
}

status completion::record(cu::event_t event) {
  // One event stands for one place in one stream, so several tickets are joined in the stream of the last one.
  if (on_channel_.size() == 1 && queued_.empty() && given_.empty() && job_ == nullptr && owner_->orders_by_channel_ &&
      owner_->is_mine()) {
    auto made = on_channel_[0].record(event);
    if (made || made.code() == EINVAL) return made;
  }
  if (!given_.empty() || !on_channel_.empty() || job_ != nullptr || queued_.size() > 1) {
    if (auto done = wait(); !done) return done;
  }
  if (!queued_.empty()) return queued_[0].dma->record(event, queued_[0].ticket);
  // Already complete. An event that was never recorded counts as complete; one that was recorded must be recorded
  // again.
  if (state_ == nullptr) return {};
  auto dma = state_->dma();
  if (!dma) return dma.error();
  return (*dma)->record(event, {});
}

}  // namespace pl::copy
