// SPDX-License-Identifier: Apache-2.0
#include "copy/completion.hpp"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "copy/planner_impl.hpp"

namespace pl::copy {

struct completion::job {
  std::vector<transfer> list;
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<bool> done{false};
  status outcome;
};

// ---- Starting ----------------------------------------------------------------------------------------------------------

namespace {

// What costs the caller no more than asking somebody else would.
constexpr std::size_t kAtOnceBytes = 16u << 10;

bool is_empty(const transfer& what) { return what.row_bytes == 0 || what.rows == 0; }  // their product may wrap

// How long the queue's thread sleeps between looks at a stream, and how many looks later it asks whether that still lives
// (which polls for a millisecond): every 50 ms or so.
constexpr timespec kLookPause{0, 50'000};
constexpr unsigned kLooksBetweenLifeChecks = 500;

}  // namespace

// In order, except that what waits for a stream lets pass what does not: the stream may be waiting for just that.
void planner::run_queue() {
  pthread_setname_np(pthread_self(), "pl-copy-queue");
  auto& queue = shared_->queue;
  std::unique_lock lock(shared_->queue_mutex);
  for (unsigned looks = 1;;) {
    status reached;
    auto next = std::find_if(queue.begin(), queue.end(),
                             [](const auto& one) { return one.dma == nullptr || one.dma->is_done(one.behind); });
    if (next == queue.end() && !queue.empty()) {
      // Only this thread takes from the queue, and what others put there leaves references to it valid.
      auto& waiting = queue[looks % queue.size()];
      lock.unlock();
      nanosleep(&kLookPause, nullptr);
      if (++looks % kLooksBetweenLifeChecks == 0) reached = waiting.dma->wait(waiting.behind, 1);
      lock.lock();
      if (reached || reached.code() == ETIMEDOUT) continue;
      next = std::find_if(queue.begin(), queue.end(), [&](const auto& one) { return &one == &waiting; });
    }
    if (next != queue.end()) {
      auto run = std::move(next->run);
      queue.erase(next);
      lock.unlock();
      run(reached);
      run = nullptr;  // with what it holds, outside of the lock
      lock.lock();
    } else if (shared_->stop) {
      return;
    } else {
      shared_->queue_changed.wait(lock);
    }
  }
}

void planner::enqueue(std::function<void(const status&)> run, copy_engine* dma, const copy_engine::ticket& behind) {
  const std::lock_guard lock(shared_->queue_mutex);
  if (!shared_->runner.joinable()) {
    // Signals are for the application's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    shared_->runner = std::thread([this] { run_queue(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  shared_->queue.push_back({std::move(run), dma, behind});
  shared_->queue_changed.notify_one();
}

result<gpu_checksum::job> planner::begin_checksum(const cu::pointer_info& device, std::uint64_t src, std::size_t bytes,
                                                  const async_options& wanted) {
  if (!is_mine()) return failure{EACCES, "a planner of the parent process: open one in this process"};
  auto state = state_of(device);
  if (!state) return state.error();
  auto by = (*state)->checksum();
  if (!by) return by.error();
  return (*by)->begin(src, bytes, wanted.after, wanted.has_after);
}

result<completion> planner::begin(std::span<const transfer> list, const async_options& wanted) {
  // All are looked at before one is queued: a copy that is refused would have to wait for the others, and those for a stream
  // that may be waiting for the caller.
  std::vector<sides> looked(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (is_empty(list[i])) continue;
    if (auto good = look(list[i], looked[i]); !good) return good.error();
    inspect_other(list[i], looked[i]);
  }
  completion made;
  made.owner_ = this;
  std::vector<transfer> by_cpu;  // what has to pass through a CPU, or is quicker so
  gpu_state* cpu_state = nullptr;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& what = list[i];
    if (is_empty(what)) continue;
    auto& at = looked[i];
    auto state = state_of(at.way == direction::on_device ? at.source : at.device);
    if (!state) return state.error();
    if (made.state_ == nullptr) made.state_ = *state;
    const bool gpu_alone = at.other != other_side::pageable;
    if (!gpu_alone || (!wanted.has_after && what.bytes() <= kAtOnceBytes)) {
      by_cpu.push_back(what);
      if (cpu_state == nullptr) cpu_state = *state;
      continue;
    }
    if (!wanted.has_after && what.rows == 1 && at.other != other_side::peer_gpu) {
      choice how = choose(what, at);
      how.width = static_cast<std::uint8_t>(std::max<unsigned>(how.width, wanted.least_workers));
      if (auto given = how.how == method::engine_copy ? give_to_engine(how, what, at) : std::nullopt) {
        made.given_.push_back({given->first, std::move(given->second), what});
        continue;
      }
    }
    auto dma = (*state)->dma();
    if (!dma) return dma.error();
    auto ticket = (*dma)->submit(std::span(&what, 1), wanted.after, wanted.has_after, wanted.turn);
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
  made.job_ = job;
  enqueue(
      [this, job](const status& reached) {
        status outcome = reached ? copy_list(job->list) : reached;
        const std::lock_guard lock(job->mutex);
        job->outcome = std::move(outcome);
        job->done.store(true, std::memory_order_release);
        job->ended.notify_all();
      },
      dma, behind);
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

// What the GPU engine did not take after all is done here and now.
status completion::end(const result<gpu_engine::fate>& fate, const transfer& what) {
  if (!fate) return fate.error();
  if (*fate == gpu_engine::fate::not_taken) {
    owner_->count_refusal({method::engine_copy, 1});
    return owner_->copy(what);
  }
  owner_->count(method::engine_copy, what.bytes());
  return {};
}

result<bool> completion::look() {
  while (!given_.empty()) {
    auto& last = given_.back();
    auto fate = last.engine->test(last.request);
    if (fate && *fate == gpu_engine::fate::pending) return false;
    const transfer what = last.what;
    given_.pop_back();
    if (auto ended = end(fate, what); !ended) return ended.error();
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
  auto state = look();
  if (!state) (void)wait();  // the rest ends too: a failure leaves nothing in flight
  return state;
}

status completion::wait() {
  if (is_empty()) return {};
  if (!owner_->is_mine()) {
    // A forked child: nobody is left who would end the job, and its lock may be held by a thread that is not here.
    if (job_ != nullptr) new std::shared_ptr<job>(std::move(job_));
    given_.clear();
    queued_.clear();
    return failure{EACCES, "these copies are the parent process's"};
  }
  status outcome;
  const auto keep_first = [&](status one) {
    if (outcome && !one) outcome = std::move(one);
  };
  for (auto& one : given_) keep_first(end(one.engine->wait(one.request), one.what));
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
