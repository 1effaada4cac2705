// SPDX-License-Identifier: Apache-2.0
// The thread of a context. It handles time-outs, dead peers and errors that peers report, and runs the tasks of executors.
// It makes no CUDA call, so it and the application's CUDA work cannot block each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "messaging/messenger.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/context.hpp"
#include "triggered/idle_wait.hpp"
#include "triggered/thread_wakeup.hpp"

namespace pl::triggered {

// Messages that one end of a channel has sent.
struct message_counts {
  std::uint64_t data = 0, credits = 0;
};

// An executor's work on the proxy thread. All calls are made on that thread.
class proxy_task {
 public:
  virtual ~proxy_task() = default;
  // Makes progress. `is_round_of_messages`: the messenger has made progress in this round. True: this task has progressed.
  virtual bool advance(bool is_round_of_messages) = 0;
  // The channel has failed or is closed: the task abandons pending work and writes no word any more. From then on drain()
  // replaces advance(): it takes what still arrives, and returns true once nothing of this end is pending.
  virtual void stop() = 0;
  virtual bool drain() = 0;
  // Streams are about to be released although drain() is not true: invalidates what the peer could mistake for complete
  // data.
  virtual void give_up() = 0;
  // True: everything that was queued has been sent and has arrived at the peer's messenger.
  virtual bool has_sent_all() const noexcept = 0;
  virtual message_counts sent() const noexcept = 0;
  virtual bool has_received(const message_counts& theirs) const noexcept = 0;
  // True: an operation is pending, or a stream may ring a doorbell without a recorded event.
  virtual bool expects_doorbell() const noexcept = 0;
  // Whether the task depends on message progress.
  virtual bool needs_messages() const noexcept = 0;
  // For a task that depends on messages: whether it waits for one now.
  virtual bool awaits_message() const noexcept { return false; }
};

// Tags of messages between proxy threads; the low 32 bits are a channel's id, those above its incarnation.
enum class message_kind : std::uint64_t {
  hello = 1,
  verdict = 2,
  notice = 3,
  data = 4,
  credit = 5,
  offer = 6,
  answer = 7,
  dma_offer = 8,
  dma_answer = 9
};
inline constexpr std::uint64_t tag_of(message_kind kind, std::uint32_t id, std::uint32_t incarnation = 0) noexcept {
  return static_cast<std::uint64_t>(kind) << 56 | (incarnation & 0xffffffull) << 32 | id;
}
inline constexpr std::uint64_t kKindMask = 0xffull << 56;

class proxy_thread {
 public:
  proxy_thread(messaging::messenger& messages, run_mode mode, std::chrono::nanoseconds wait_timeout);
  // Before anything else. `cpus`: where the thread runs; empty: anywhere. EAGAIN: it cannot be started.
  status start(std::vector<int> cpus);
  ~proxy_thread();  // stops the thread; tasks must have ended

  void add(const std::shared_ptr<channel_core>& channel);
  void add(const std::shared_ptr<channel_core>& channel, std::shared_ptr<proxy_task> task);
  // The owner has closed the channel. If streams have pending work of it, both ends fail, so that waiting streams are
  // released. The peer learns of the close once our streams have passed all of its work and their puts have been
  // transferred; only then may the peer reuse the words that our streams write. Calls `free` on the proxy thread once no
  // stream of either end can access our words. flush() returns false if some channels did not get that far within the
  // limit.
  void close(const std::shared_ptr<channel_core>& channel, std::function<void()> free);
  bool flush(std::chrono::milliseconds limit);
  // Sets the channel's error and releases its streams; notifies the peer unless it is gone. Any thread.
  void fail(channel_core& channel, int code, const std::string& reason);
  void set_mode(run_mode mode);
  // Signals a change that the thread checks only in its slow rounds; wakes it if it sleeps.
  void wake();
  // Wakes the thread; also used by peers. A thread that queues work checks it after publishing the work (idle_wait.hpp).
  const std::shared_ptr<thread_wakeup>& wakeup() const noexcept { return wakeup_; }
  std::string report() const;

 private:
  struct notice {
    std::uint32_t id = 0;
    std::int32_t code = 0;  // 0: closed
    std::uint32_t incarnation = 0;
    std::uint32_t reserved = 0;
    message_counts sent;     // of a closed one
    std::uint64_t puts = 0;  // signals included
  };
  // Progress of closing a channel. Proxy thread only.
  struct ending {
    bool is_stopped = false, is_drained = false;  // the task
    bool is_peer_notified = false;                // of our close
    bool is_peer_dead = false;
    std::optional<notice> theirs;  // the peer has closed
    std::uint64_t stopped_at = 0;
  };
  struct entry {
    std::shared_ptr<channel_core> channel;
    std::shared_ptr<proxy_task> task;
    std::function<void()> free;  // set by close()
    std::shared_ptr<ending> end = std::make_shared<ending>();
  };

  void run(const std::vector<int>& cpus);
  bool round(std::uint64_t now_ns);
  bool must_ask_for_messages(std::uint64_t now_ns) const;
  void check_entry(entry& managed, std::uint64_t now_ns);
  void check_entries(std::uint64_t now_ns);
  void check_end(entry& managed, std::uint64_t now_ns);
  bool can_free(const entry& managed, std::uint64_t now_ns) const;
  void check_stuck(channel_core& channel, std::uint64_t now_ns);
  bool take_notices();
  void send_notice(int peer, const notice& message);
  void rest(std::uint64_t now_ns);
  bool is_work_expected() const;
  void deep_sleep();
  bool sleep_until_woken(std::chrono::nanoseconds limit);

  messaging::messenger& messages_;
  const std::chrono::nanoseconds wait_timeout_;
  const std::shared_ptr<thread_wakeup> wakeup_ = thread_wakeup::make();
  std::atomic<run_mode> mode_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::uint64_t> rounds_{0}, idle_sleeps_{0}, sleeps_{0}, wakes_{0};

  mutable std::mutex mutex_;  // of entries_ and what follows
  std::condition_variable changed_;
  std::vector<entry> entries_;
  std::atomic<std::uint64_t> changes_{1};  // of what the thread looks at only in its slow rounds

  // Proxy thread only.
  std::vector<entry> mine_;  // entries_ as of seen_changes_
  std::uint64_t seen_changes_ = 0, last_check_ns_ = 0;
  bool has_tasks_ = false, needs_messages_ = true;
  unsigned quiet_rounds_ = 0;
  std::uint64_t last_messages_ns_ = 0;  // when messages were asked for
  sleep_planner planner_;
  messaging::request incoming_;
  notice received_;
  struct outgoing {
    std::unique_ptr<notice> message;
    messaging::request sending;
  };
  std::vector<outgoing> outgoing_;
  std::vector<std::pair<int, notice>> unsent_notices_;  // under mutex_

  std::thread thread_;
};

}  // namespace pl::triggered
