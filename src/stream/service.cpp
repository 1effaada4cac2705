// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "clock.hpp"
#include "log.hpp"

namespace pl::stream {
namespace {

// A stuck stream is let go that much later than its time-out says; in return an idle context costs 200 wake-ups a second.
constexpr std::chrono::milliseconds kTick{5};
constexpr unsigned kSpinsBeforeYield = 64;
// From "come to the last wait" until the front end has certainly seen the poison in its word.
constexpr std::uint64_t kGraceNs = 10'000'000;

void pin_to(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (const int rc = pthread_setaffinity_np(pthread_self(), sizeof set, &set); rc != 0)
    PL_LOG(warn, "stream: the service thread may not run on CPU %d and runs anywhere", cpu);
}

}  // namespace

void channel_core::poison_words(int code) const noexcept {
  const auto value = poison(code);
  __atomic_store_n(&host().status, static_cast<std::uint64_t>(code), __ATOMIC_RELEASE);
  words->poison_all(index, value);
}

std::uint64_t channel_core::passed() const noexcept {
  const auto last = reached();
  if (last == 0) return 0;
  if (!words->is_mapped()) return __atomic_load_n(&host().passed, __ATOMIC_ACQUIRE);
  const auto word = words->load(index, offsetof(gpu_words, signal));
  return static_cast<std::int64_t>(word - target(last)) >= 0 ? last : last - 1;
}

service::service(link::messenger& messages, run_mode mode, std::chrono::nanoseconds wait_timeout, int cpu)
    : messages_(messages), wait_timeout_(wait_timeout), mode_(mode), thread_([this, cpu] { run(cpu); }) {}

service::~service() {
  is_stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void service::add(const std::shared_ptr<channel_core>& channel) { add(channel, nullptr); }

void service::add(const std::shared_ptr<channel_core>& channel, std::shared_ptr<service_task> task) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.channel == channel; });
    if (known == entries_.end()) entries_.push_back({channel, std::move(task), {}});
    else known->task = std::move(task);
  }
  wake();
}

void service::close(const std::shared_ptr<channel_core>& channel, std::function<void()> free) {
  channel->is_closed.store(true, std::memory_order_release);
  if (!channel->is_quiet()) channel->poison_words(ECANCELED);
  {
    const std::lock_guard lock(mutex_);
    to_tell_.emplace_back(channel->peer, notice{channel->id, 0});
    for (auto& e : entries_)
      if (e.channel == channel) e.free = std::move(free);
  }
  wake();
}

bool service::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return entries_.empty() && to_tell_.empty(); });
}

void service::fail(channel_core& channel, int code, const std::string& why) {
  if (!channel.fail(code, why)) return;
  channel.poison_words(code);
  {
    const std::lock_guard lock(mutex_);
    if (code != ECONNRESET) to_tell_.emplace_back(channel.peer, notice{channel.id, code});
  }
  wake();
}

void service::set_mode(run_mode mode) {
  mode_.store(mode, std::memory_order_release);
  wake();
}

void service::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_all();
}

std::string service::report() const {
  return "service thread: " + std::to_string(rounds_.load(std::memory_order_relaxed)) + " rounds, " +
         std::to_string(sleeps_.load(std::memory_order_relaxed)) + " sleeps, " +
         (mode_.load(std::memory_order_relaxed) == run_mode::economy ? "economy" : "performance") + " mode\n";
}

// ---- The thread

void service::run(int cpu) {
  pin_to(cpu);
  pthread_setname_np(pthread_self(), "peerlane-stream");
  std::uint64_t last_move = monotonic_ns();
  unsigned quiet_rounds = 0;
  while (!is_stopping_.load(std::memory_order_acquire)) {
    const auto now = monotonic_ns();
    rounds_.fetch_add(1, std::memory_order_relaxed);
    if (round(now)) {
      last_move = now;
      quiet_rounds = 0;
    } else if (++quiet_rounds > kSpinsBeforeYield) {
      idle(last_move);
    }
  }
  if (!incoming_.is_empty()) static_cast<void>(incoming_.cancel());
}

bool service::round(std::uint64_t now_ns) {
  bool moved = take_notices();
  std::vector<entry> mine;
  std::vector<std::pair<int, notice>> news;
  {
    const std::lock_guard lock(mutex_);
    news.swap(to_tell_);
    mine = entries_;
  }
  for (const auto& [peer, what] : news) tell(peer, what);
  std::erase_if(outgoing_, [](outgoing& out) { return out.sending.test(); });
  for (auto& e : mine) {
    if (e.task != nullptr && e.channel->error.load(std::memory_order_acquire) == 0) moved |= e.task->advance();
    look_at(e, now_ns);
  }
  static_cast<void>(messages_.progress());
  return moved;
}

void service::tell(int peer, const notice& what) {
  outgoing out{std::make_unique<notice>(what), {}};
  out.sending = messages_.isend(peer, link::host_buffer(out.what.get(), sizeof(notice)), tag_of(message_kind::notice, 0));
  outgoing_.push_back(std::move(out));
}

bool service::take_notices() {
  if (incoming_.is_empty())
    incoming_ = messages_.irecv(link::kAnySource, link::host_buffer(&received_, sizeof received_),
                                tag_of(message_kind::notice, 0), kKindMask);
  if (!incoming_.test()) return false;
  if (incoming_.outcome().ok()) {
    const int from = incoming_.info().source;
    std::shared_ptr<channel_core> about;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& e : entries_)
        if (e.channel->peer == from && e.channel->id == received_.id) about = e.channel;
    }
    if (about != nullptr) {
      const int code = received_.code == 0 ? EPIPE : received_.code;
      about->is_closed_there.store(true, std::memory_order_release);
      // A peer that closes has nothing under way towards us; only what we still wait for will not come.
      if (about->fail(EPIPE,
                      code == EPIPE ? "the peer has closed its end" : "the peer's end is in error " + std::to_string(code)))
        about->poison_words(EPIPE);
    }
  }
  incoming_ = {};
  return true;
}

void service::look_at(entry& of, std::uint64_t now_ns) {
  auto& channel = *of.channel;
  if (const auto peer = messages_.peer_state(channel.peer); peer.code() == ECONNRESET) {
    channel.is_closed_there.store(true, std::memory_order_release);
    if (channel.fail(ECONNRESET, "the process of rank " + std::to_string(channel.peer) + " is gone"))
      channel.poison_words(ECONNRESET);
  }
  look_for_stuck(channel, now_ns);
  const int error = channel.error.load(std::memory_order_acquire);
  const bool is_over = of.free != nullptr;
  if (is_over || error != 0) {
    if (of.task != nullptr && !of.is_task_stopped) {
      of.task->stop(error != 0 ? error : ECANCELED);
      const std::lock_guard lock(mutex_);
      for (auto& e : entries_)
        if (e.channel == of.channel) e.is_task_stopped = true;
    }
    if (!channel.is_quiet()) channel.poison_words(error != 0 ? error : ECANCELED);
  }
  if (!is_over || !channel.is_quiet()) return;
  if (channel.quiet_since == 0) channel.quiet_since = now_ns;
  if (now_ns - channel.quiet_since < kGraceNs) return;
  if (!channel.is_closed_there.load(std::memory_order_acquire) &&
      channel.kind.load(std::memory_order_acquire) != executor_kind::automatic)
    return;  // the peer's streams may still write our words
  of.free();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const entry& e) { return e.channel == of.channel; });
  changed_.notify_all();
}

void service::look_for_stuck(channel_core& channel, std::uint64_t now_ns) {
  const auto limit = channel.options.wait_timeout.count() >= 0 ? channel.options.wait_timeout : wait_timeout_;
  if (limit.count() == 0 || !channel.words->can_release()) return;
  const auto limit_ns = static_cast<std::uint64_t>(limit.count());
  const auto for_ms = " for " + std::to_string(limit_ns / 1'000'000) + " ms";
  if (const auto number = channel.graph->find_stuck(*channel.words, channel.index, now_ns, limit_ns))
    fail(channel, ETIMEDOUT, "a stream has stood in captured wait " + std::to_string(*number) + for_ms);
  if (const auto put = channel.find_stuck_put(now_ns, limit_ns); put != 0)
    fail(channel, ETIMEDOUT,
         "put " + std::to_string(put) + " has waited for the release of put " + std::to_string(put - channel.options.depth) +
             for_ms);
  // The word is read (1 us) only when the same wait is the last one reached for a second look.
  const auto reached = channel.reached();
  const bool is_new = channel.stood_at != reached;
  channel.stood_at = reached;
  if (is_new || reached == 0) {
    channel.stood_since = now_ns;
    return;
  }
  if (now_ns - channel.stood_since < limit_ns) return;
  if (channel.passed() == reached) return;
  fail(channel, ETIMEDOUT, "a stream has stood in wait " + std::to_string(reached) + for_ms);
}

void service::idle(std::uint64_t idle_since_ns) {
  static_cast<void>(idle_since_ns);
  std::unique_lock lock(mutex_);
  const bool has_tasks = std::any_of(entries_.begin(), entries_.end(), [](const entry& e) { return e.task != nullptr; });
  if (has_tasks && mode_.load(std::memory_order_acquire) == run_mode::performance) {
    lock.unlock();
    sched_yield();
    return;
  }
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  changed_.wait_for(lock, kTick, [&] { return is_woken_; });
  is_woken_ = false;
}

}  // namespace pl::stream
