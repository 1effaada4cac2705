// SPDX-License-Identifier: Apache-2.0
#include "triggered/proxy_thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "os/blocked_signals.hpp"

namespace pl::triggered {
namespace {

// A stuck stream is released, and a peer's end noticed, up to this much later; an idle context costs 200 wake-ups a second,
// in economy mode without channels of the proxy's 50.
constexpr std::chrono::milliseconds kTick{5}, kEconomyTick{20};
constexpr unsigned kSpinsBeforeYield = 64;
// To ask for messages costs as much as many looks at doorbells: a system call over TCP, a microsecond. So this often while
// no task awaits one.
constexpr std::uint64_t kUnawaitedMessagesNs = 2'000;
constexpr std::uint64_t kCheckNs = 1'000'000;
// The longest time that streams wait for a slot when the peer does not take pending data.
constexpr std::uint64_t kDrainNs = 100'000'000;
// Time from reaching the last wait until the front end has certainly seen the poison in its word, or the last put of a
// closed peer.
constexpr std::uint64_t kGraceNs = 10'000'000;

void stay_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<unsigned>(cpu), &set);
  if (CPU_COUNT(&set) == 0) return;
  if (const int rc = pthread_setaffinity_np(pthread_self(), sizeof set, &set); rc != 0)
    PL_LOG(warn, "stream: the proxy thread may not run on CPU %d and the CPUs near it, and runs anywhere", cpus.front());
}

}  // namespace

void channel_core::poison_words(int code) const noexcept {
  const auto value = poison(code);
  __atomic_store_n(&host().status, static_cast<std::uint64_t>(code), __ATOMIC_RELEASE);
  words->poison_all(index, value, are_slots_free.load(std::memory_order_acquire));
}

std::uint64_t channel_core::passed() const noexcept {
  const auto last = reached();
  if (last == 0) return 0;
  if (!words->is_mapped()) return __atomic_load_n(&host().passed, __ATOMIC_ACQUIRE);
  const auto word = words->load(index, offsetof(gpu_words, signal));
  return static_cast<std::int64_t>(word - target(last)) >= 0 ? last : last - 1;
}

proxy_thread::proxy_thread(messaging::messenger& messages, run_mode mode, std::chrono::nanoseconds wait_timeout)
    : messages_(messages), wait_timeout_(wait_timeout), mode_(mode) {}

status proxy_thread::start(std::vector<int> cpus) {
  auto started = try_start_thread("serves streams", [this, allowed = std::move(cpus)] { run(allowed); });
  if (!started) return started.error();
  thread_ = *std::move(started);
  return {};
}

proxy_thread::~proxy_thread() {
  if (!thread_.joinable()) return;
  is_stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void proxy_thread::add(const std::shared_ptr<channel_core>& channel) { add(channel, nullptr); }

void proxy_thread::add(const std::shared_ptr<channel_core>& channel, std::shared_ptr<proxy_task> task) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.channel == channel; });
    if (known == entries_.end()) entries_.push_back({channel, std::move(task), {}});
    else known->task = std::move(task);
  }
  wake();
}

void proxy_thread::close(const std::shared_ptr<channel_core>& channel, std::function<void()> free) {
  channel->is_closed.store(true, std::memory_order_release);
  if (!channel->is_quiet()) fail(*channel, ECANCELED, "closed while streams still had work for it");
  {
    const std::lock_guard lock(mutex_);
    for (auto& e : entries_)
      if (e.channel == channel) e.free = std::move(free);
  }
  wake();
}

bool proxy_thread::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return entries_.empty() && unsent_notices_.empty(); });
}

void proxy_thread::fail(channel_core& channel, int code, const std::string& reason) {
  if (!channel.fail(code, reason)) return;
  channel.poison_words(code);
  {
    const std::lock_guard lock(mutex_);
    if (code != ECONNRESET)
      unsent_notices_.emplace_back(channel.peer, notice{channel.id, code, channel.incarnation, 0, {}, 0});
  }
  wake();
}

void proxy_thread::set_mode(run_mode mode) {
  mode_.store(mode, std::memory_order_release);
  wake();
}

void proxy_thread::wake() {
  changes_.fetch_add(1, std::memory_order_release);
  wakeup_->ring();
}

std::string proxy_thread::report() const {
  const auto count = [](const std::atomic<std::uint64_t>& counter) {
    return std::to_string(counter.load(std::memory_order_relaxed));
  };
  return "proxy thread: " + count(rounds_) + " rounds, " + count(idle_sleeps_) + " naps, " + count(sleeps_) + " sleeps, " +
         count(wakes_) + " wake-ups, " +
         (mode_.load(std::memory_order_relaxed) == run_mode::economy ? "economy" : "performance") + " mode\n";
}

// ---- The thread

void proxy_thread::run(const std::vector<int>& cpus) {
  stay_on(cpus);
  pthread_setname_np(pthread_self(), "peerlane-stream");
  prctl(PR_SET_TIMERSLACK, 1ul);  // naps end when they should, not 50 us later
  while (!is_stopping_.load(std::memory_order_acquire)) {
    const auto now = monotonic_ns();
    rounds_.fetch_add(1, std::memory_order_relaxed);
    if (round(now)) {
      planner_.moved(now);
      quiet_rounds_ = 0;
    } else {
      rest(now);
    }
  }
  if (!incoming_.is_empty()) static_cast<void>(incoming_.cancel());
}

bool proxy_thread::must_ask_for_messages(std::uint64_t now_ns) const {
  if (now_ns - last_messages_ns_ >= kUnawaitedMessagesNs) return true;
  return needs_messages_ && std::any_of(mine_.begin(), mine_.end(), [](const entry& e) {
           return e.task != nullptr && !e.end->is_stopped && e.task->awaits_message();
         });
}

// Runs tasks in every round; everything else, which takes locks and system calls, at most once in kCheckNs.
bool proxy_thread::round(std::uint64_t now_ns) {
  const bool asks = must_ask_for_messages(now_ns);
  bool has_moved = false;
  if (asks) {
    last_messages_ns_ = now_ns;
    has_moved = messages_.progress();
  }
  for (auto& e : mine_)
    if (e.task != nullptr && !e.end->is_stopped && e.channel->error.load(std::memory_order_acquire) == 0)
      has_moved |= e.task->advance(asks);
  if (now_ns - last_check_ns_ >= kCheckNs || changes_.load(std::memory_order_acquire) != seen_changes_)
    check_entries(now_ns);
  return has_moved;
}

void proxy_thread::check_entries(std::uint64_t now_ns) {
  last_check_ns_ = now_ns;
  std::vector<std::pair<int, notice>> notices;
  {
    const std::lock_guard lock(mutex_);
    notices.swap(unsent_notices_);
    if (const auto now = changes_.load(std::memory_order_relaxed); now != seen_changes_) {
      mine_ = entries_;
      seen_changes_ = now;
    }
  }
  has_tasks_ = std::any_of(mine_.begin(), mine_.end(), [](const entry& e) { return e.task != nullptr; });
  needs_messages_ =
      std::any_of(mine_.begin(), mine_.end(), [](const entry& e) { return e.task != nullptr && e.task->needs_messages(); });
  for (const auto& [peer, message] : notices) send_notice(peer, message);
  std::erase_if(outgoing_, [](outgoing& out) { return out.sending.test(); });
  while (take_notices()) {}
  for (auto& e : mine_) check_entry(e, now_ns);
}

void proxy_thread::send_notice(int peer, const notice& message) {
  outgoing out{std::make_unique<notice>(message), {}};
  out.sending =
      messages_.isend(peer, messaging::host_buffer(out.message.get(), sizeof(notice)), tag_of(message_kind::notice, 0));
  outgoing_.push_back(std::move(out));
}

bool proxy_thread::take_notices() {
  if (incoming_.is_empty())
    incoming_ = messages_.irecv(messaging::kAnySource, messaging::host_buffer(&received_, sizeof received_),
                                tag_of(message_kind::notice, 0), kKindMask);
  if (!incoming_.test()) return false;
  const bool is_notice = incoming_.outcome().ok();  // not if everybody is gone
  if (is_notice) {
    const int source = incoming_.info().source;
    for (auto& e : mine_) {
      if (e.channel->peer != source || e.channel->id != received_.id || e.channel->incarnation != received_.incarnation)
        continue;
      if (received_.code == 0) e.end->theirs = received_;
      else if (e.channel->fail(EPIPE, "the peer's end is in error " + std::to_string(received_.code)))
        e.channel->poison_words(EPIPE);
    }
  }
  incoming_ = {};
  return is_notice;
}

void proxy_thread::check_entry(entry& managed, std::uint64_t now_ns) {
  auto& channel = *managed.channel;
  auto& end = *managed.end;
  if (const auto peer = messages_.peer_state(channel.peer); peer.code() == ECONNRESET && !end.is_peer_dead) {
    end.is_peer_dead = true;
    channel.is_peer_closed.store(true, std::memory_order_release);
    if (!channel.has_peer_left() &&
        channel.fail(ECONNRESET, "the process of rank " + std::to_string(channel.peer) + " is gone"))
      channel.poison_words(ECONNRESET);
  }
  // Takes what the peer sent before it closed first.
  const auto& theirs = end.theirs;
  if (theirs && !channel.is_peer_closed.load(std::memory_order_relaxed) &&
      (managed.task != nullptr ? managed.task->has_received(theirs->sent) : theirs->sent.data + theirs->sent.credits == 0)) {
    channel.peer_last_put.store(theirs->puts, std::memory_order_release);
    channel.is_peer_closed.store(true, std::memory_order_release);
  }
  if (const int code = channel.executor_error(); code != 0)
    fail(channel, code, "a put could not be posted: " + channel.explain_error());
  check_stuck(channel, now_ns);
  check_end(managed, now_ns);
  if (!can_free(managed, now_ns)) return;
  managed.free();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const entry& e) { return e.channel == managed.channel; });
  changes_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
}

void proxy_thread::check_end(entry& managed, std::uint64_t now_ns) {
  auto& channel = *managed.channel;
  auto& end = *managed.end;
  const int error = channel.error.load(std::memory_order_acquire);
  const bool is_over = managed.free != nullptr;
  if (!is_over && error == 0) return;
  const bool is_done = error != 0 || managed.task == nullptr || managed.task->has_sent_all();
  if (is_done && !end.is_stopped) {
    end.is_stopped = true;
    end.stopped_at = now_ns;
    if (managed.task != nullptr) managed.task->stop();
  }
  if (end.is_stopped && managed.task != nullptr) {
    end.is_drained = managed.task->drain();
    if (!end.is_drained && !channel.are_slots_free.load(std::memory_order_relaxed) && now_ns - end.stopped_at > kDrainNs)
      managed.task->give_up();
  }
  if (is_over && is_done && channel.is_quiet() && !end.is_peer_notified) {
    end.is_peer_notified = true;
    if (!end.is_peer_dead)
      send_notice(channel.peer, {channel.id, 0, channel.incarnation, 0,
                                 managed.task != nullptr ? managed.task->sent() : message_counts{}, channel.puts.load()});
  }
  // Repeated while a stream may be inside a wait: a late count may have overwritten the poison.
  if (!channel.is_quiet() || channel.passed() != channel.reached()) channel.poison_words(error != 0 ? error : ECANCELED);
}

// No stream of either end can access the words any more, and no message is left that a later channel could receive.
bool proxy_thread::can_free(const entry& managed, std::uint64_t now_ns) const {
  auto& channel = *managed.channel;
  const auto& end = *managed.end;
  if (managed.free == nullptr || !end.is_peer_notified || !channel.is_quiet() || channel.passed() != channel.reached())
    return false;
  if (channel.quiet_since == 0) channel.quiet_since = now_ns;
  if (now_ns - channel.quiet_since < kGraceNs) return false;
  if (channel.kind.load(std::memory_order_acquire) == executor_kind::automatic) return true;
  if (!channel.is_peer_closed.load(std::memory_order_acquire) && !end.theirs) return false;
  if (managed.task == nullptr || end.is_peer_dead) return managed.task == nullptr || end.is_drained;
  return end.is_drained && managed.task->has_received(end.theirs->sent);
}

void proxy_thread::check_stuck(channel_core& channel, std::uint64_t now_ns) {
  const bool is_permanent = channel.has_peer_left();
  const auto wanted = channel.options.wait_timeout.count() >= 0 ? channel.options.wait_timeout : wait_timeout_;
  const auto limit_ns = is_permanent ? kGraceNs : static_cast<std::uint64_t>(wanted.count());
  if (limit_ns == 0 || !channel.words->can_release()) return;
  const auto release_stream = [&](const std::string& description) {
    if (is_permanent) fail(channel, EPIPE, "the peer has closed its end: " + description);
    else fail(channel, ETIMEDOUT, description + " for " + std::to_string(limit_ns / 1'000'000) + " ms");
  };
  if (is_permanent && channel.may_wait_unseen()) release_stream("no thread releases puts any more");
  if (const auto number = channel.graph->find_stuck(*channel.words, channel.index, now_ns, limit_ns))
    release_stream("a stream has stood in captured wait " + std::to_string(*number));
  if (const auto wait = channel.find_stuck_counted_wait(now_ns, limit_ns); wait != 0)
    release_stream("a stream has stood in captured wait " + std::to_string(wait) + " of those launched");
  if (const auto put = channel.find_stuck_counted_put(now_ns, limit_ns); put != 0)
    release_stream("captured put " + std::to_string(put) + " of those launched has waited for a release");
  if (const auto put = channel.find_stuck_put(now_ns, limit_ns); put != 0)
    release_stream("put " + std::to_string(put) + " has waited for the release of put " +
                   std::to_string(put - channel.options.depth));
  // The word is read (1 us) only when the same wait is the last one reached for a second look.
  const auto reached = channel.reached();
  const bool is_new = channel.wait_seen != reached;
  channel.wait_seen = reached;
  if (is_new || reached == 0) {
    channel.wait_since = now_ns;
    return;
  }
  if (now_ns - channel.wait_since < limit_ns) return;
  if (channel.passed() == reached) return;
  release_stream("a stream has stood in wait " + std::to_string(reached));
}

// ---- Rest

void proxy_thread::rest(std::uint64_t now_ns) {
  if (++quiet_rounds_ <= kSpinsBeforeYield) return;
  if (!has_tasks_) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(sleep_until_woken(mode_.load(std::memory_order_acquire) == run_mode::economy ? kEconomyTick : kTick));
    return;
  }
  if (mode_.load(std::memory_order_acquire) == run_mode::performance) {
    sched_yield();
    return;
  }
  if (planner_.is_still(now_ns) && !is_work_expected()) return deep_sleep();
  const auto nap = planner_.sleep_ns(now_ns);
  if (nap == 0) {
    sched_yield();
    return;
  }
  idle_sleeps_.fetch_add(1, std::memory_order_relaxed);
  const auto begin = monotonic_ns();
  if (!sleep_until_woken(std::chrono::nanoseconds(nap))) planner_.slept(nap, monotonic_ns() - begin);
}

// Whether work is expected that would not wake the thread from a deep sleep.
bool proxy_thread::is_work_expected() const {
  return std::any_of(mine_.begin(), mine_.end(),
                     [](const entry& e) { return e.task != nullptr && !e.end->is_stopped && e.task->expects_doorbell(); });
}

void proxy_thread::deep_sleep() {
  bool has_work = false;
  for (auto step = sleep_step::check; step != sleep_step::leave; step = next(step, has_work)) {
    if (step == sleep_step::check || step == sleep_step::check_again) has_work = is_work_expected();
    if (step == sleep_step::mark_asleep) wakeup_->set_asleep(true);
    if (step == sleep_step::withdraw) wakeup_->set_asleep(false);
    if (step != sleep_step::block) continue;
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(sleep_until_woken(kTick));
  }
}

// True: it was rung.
bool proxy_thread::sleep_until_woken(std::chrono::nanoseconds limit) {
  if (!wakeup_->wait(limit)) return false;
  wakes_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace pl::triggered
