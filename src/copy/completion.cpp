// SPDX-License-Identifier: Apache-2.0
#include "completion.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "clock.hpp"
#include "mmio.hpp"
#include "planner_impl.hpp"
#include "text.hpp"

namespace pl::copy {

struct completion::job {
  std::vector<transfer> list;
  cu::event_t after = nullptr;  // ours; the list waits for it
  gpu_context context;          // of the event
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<bool> done{false};
  status outcome;
};

// ---- Starting ----------------------------------------------------------------------------------------------------------

namespace {

// What costs the caller no more than asking somebody else would.
constexpr std::size_t kAtOnceBytes = 16u << 10;

result<cu::event_t> event_behind(const gpu_context& context, cu::stream_t stream) {
  const auto& cuda = *context.cuda;
  int capturing = cu::capture_status::none;
  if (cuda.cuStreamIsCapturing != nullptr && cuda.cuStreamIsCapturing(stream, &capturing) == cu::error_code::success &&
      capturing != cu::capture_status::none)
    return failure{EBUSY,
                   "the stream is being captured into a graph: copies cannot wait for it, begin them after the capture"};
  cu::event_t event = nullptr;
  auto rc = cuda.cuEventCreate(&event, cu::event_flag::disable_timing);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "an event to wait for a stream");
  rc = cuda.cuEventRecord(event, stream);
  if (rc != cu::error_code::success) {
    cuda.cuEventDestroy_v2(event);
    return cu::make_error(cuda, rc, "recording an event in the stream that the copies wait for");
  }
  return event;
}

}  // namespace

void planner::run_queue() {
  pthread_setname_np(pthread_self(), "pl-copy-queue");
  std::unique_lock lock(shared_->queue_mutex);
  for (;;) {
    if (!shared_->queue.empty()) {
      auto work = std::move(shared_->queue.front());
      shared_->queue.pop_front();
      lock.unlock();
      work();
      lock.lock();
    } else if (shared_->stop) {
      return;
    } else {
      shared_->queue_changed.wait(lock);
    }
  }
}

void planner::enqueue(std::function<void()> work) {
  const std::lock_guard lock(shared_->queue_mutex);
  if (!shared_->runner.joinable()) {
    // Signals are for the application's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    shared_->runner = std::thread([this] { run_queue(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  shared_->queue.push_back(std::move(work));
  shared_->queue_changed.notify_one();
}

result<completion> planner::begin(std::span<const transfer> list, const async_options& wanted) {
  completion made;
  made.owner_ = this;
  std::vector<transfer> by_cpu;  // what has to pass through a CPU, or is quicker so
  for (const auto& what : list) {
    if (what.row_bytes == 0 || what.rows == 0) continue;
    auto at = look(what);
    if (!at) return at.error();
    inspect_other(what, *at);
    auto state = state_of(at->way == direction::on_device ? at->source : at->device);
    if (!state) return state.error();
    if (made.state_ == nullptr) made.state_ = *state;
    const bool gpu_alone = at->other != other_side::pageable;
    if (!gpu_alone || (!wanted.has_after && what.bytes() <= kAtOnceBytes)) {
      by_cpu.push_back(what);
      continue;
    }
    if (!wanted.has_after && what.rows == 1 && at->other != other_side::peer_gpu) {
      const choice how = choose(what, *at);
      if (auto given = how.how == method::engine_copy ? give_to_engine(how, what, *at) : std::nullopt) {
        made.given_.push_back({given->first, std::move(given->second), what});
        count(how.how, what.bytes());
        continue;
      }
    }
    auto dma = (*state)->dma();
    if (!dma) return dma.error();
    auto ticket = (*dma)->submit(std::span(&what, 1), wanted.after, wanted.has_after);
    if (!ticket) return ticket.error();
    made.queued_.push_back({*dma, *ticket});
    count(method::copy_engine, what.bytes());
  }
  if (by_cpu.empty()) return made;

  std::size_t total = 0;
  for (const auto& what : by_cpu) total += what.bytes();
  if (!wanted.has_after && total <= kAtOnceBytes) {
    if (auto done = copy_list(by_cpu); !done) return done.error();
    return made;
  }
  auto job = std::make_shared<completion::job>();
  job->list = std::move(by_cpu);
  if (wanted.has_after) {
    auto at = look(job->list[0]);
    if (!at) return at.error();
    auto state = state_of(at->device);
    if (!state) return state.error();
    job->context = (*state)->context;
    auto scope = context_use::enter(job->context);
    if (!scope) return scope.error();
    auto event = event_behind(job->context, wanted.after);
    if (!event) return event.error();
    job->after = *event;
  }
  made.job_ = job;
  enqueue([this, job] {
    status outcome;
    if (job->after != nullptr) {
      auto scope = context_use::enter(job->context);
      if (!scope) {
        outcome = scope.error();
      } else {
        const auto rc = cuda_.cuEventSynchronize(job->after);
        if (rc != cu::error_code::success) outcome = cu::make_error(cuda_, rc, "waiting for the stream before the copies");
        cuda_.cuEventDestroy_v2(job->after);
      }
    }
    if (outcome) outcome = copy_list(job->list);
    const std::lock_guard lock(job->mutex);
    job->outcome = std::move(outcome);
    job->done.store(true, std::memory_order_release);
    job->ended.notify_all();
  });
  return made;
}

std::optional<std::pair<gpu_engine*, gpu_engine::request>> planner::give_to_engine(const choice& how, const transfer& what,
                                                                                   sides& at) {
  auto engine = open_engine(at);
  if (!engine) return std::nullopt;
  transfer moved = what;
  if (at.way == direction::to_host) moved.dst = at.host.device_ptr;
  else if (at.way == direction::to_device) moved.src = at.host.device_ptr;
  else if (at.device.context != at.source.context) return std::nullopt;
  auto begun = (*engine)->begin_copy(moved, how.width);
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
    job_ = std::move(other.job_);
    other.queued_.clear();
    other.given_.clear();
  }
  return *this;
}

completion::~completion() { (void)wait(); }

result<bool> completion::look() {
  while (!given_.empty()) {
    auto& last = given_.back();
    auto fate = last.engine->test(last.request);
    if (fate && *fate == gpu_engine::fate::pending) return false;
    const transfer what = last.what;
    const bool not_taken = fate && *fate == gpu_engine::fate::not_taken;
    given_.pop_back();
    if (!fate) return fate.error();
    if (not_taken) {
      if (auto done = owner_->copy(what); !done) return done.error();
    }
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
  auto state = look();
  if (!state) (void)wait();  // the rest ends too: a failure leaves nothing in flight
  return state;
}

status completion::wait() {
  status outcome;
  const auto keep_first = [&](status one) {
    if (outcome && !one) outcome = std::move(one);
  };
  for (auto& one : given_) {
    auto fate = one.engine->wait(one.request);
    if (!fate) keep_first(fate.error());
    else if (*fate == gpu_engine::fate::not_taken) keep_first(owner_->copy(one.what));
  }
  given_.clear();
  for (auto& one : queued_) keep_first(one.dma->wait(one.ticket));
  queued_.clear();
  if (job_ != nullptr) {
    const auto last = std::move(job_);
    std::unique_lock lock(last->mutex);
    last->ended.wait(lock, [&] { return last->done.load(std::memory_order_acquire); });
    keep_first(last->outcome);
  }
  return outcome;
}

status completion::make_wait(cu::stream_t stream) {
  if (!given_.empty() || job_ != nullptr) return wait();
  for (const auto& one : queued_)
    if (auto made = one.dma->make_wait(stream, one.ticket); !made) return made;
  return {};
}

status completion::record(cu::event_t event) {
  // One event stands for one place in one stream: several tickets are brought together by the last one's stream.
  if (!given_.empty() || job_ != nullptr || queued_.size() > 1) {
    if (auto done = wait(); !done) return done;
  }
  if (!queued_.empty()) return queued_[0].dma->record(event, queued_[0].ticket);
  // Done already. An event that was never recorded counts as complete; one that was must be recorded anew.
  if (state_ == nullptr) return {};
  auto dma = state_->dma();
  if (!dma) return dma.error();
  return (*dma)->record(event, {});
}

}  // namespace pl::copy
