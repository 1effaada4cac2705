// SPDX-License-Identifier: Apache-2.0
// The thread behind a context: sees to time-outs, dead peers, errors told by peers, and drives what executors give it. It
// makes no CUDA call, so that nothing an application does with CUDA can hold it up, and it nothing of the application's.
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

namespace pl::stream {

// Messages that one end of a channel has sent.
struct carried {
  std::uint64_t data = 0, credits = 0;
};

// What an executor has carried by the service thread, on which all calls are made.
class service_task {
 public:
  virtual ~service_task() = default;
  // `has_heard`: messages moved. True: something of this task moved.
  virtual bool advance(bool has_heard) = 0;
  // Its channel is in error or closed: gives up what is under way and writes no word any more. drain() is called instead of
  // advance() from then on: it takes what still comes, and is true once nothing of ours is under way.
  virtual void stop() = 0;
  virtual bool drain() = 0;
  // Streams will be let go though drain() is not true: spoils what the peer could take for whole.
  virtual void give_up() = 0;
  // All that was queued has been sent and has arrived at the messenger's end.
  virtual bool has_carried() const noexcept = 0;
  virtual carried sent() const noexcept = 0;
  virtual bool has_got(const carried& theirs) const noexcept = 0;
  // Something is under way, or may ring with no event behind it.
  virtual bool expects_bell() const noexcept = 0;
  // Nothing comes or goes for it unless messages make progress.
  virtual bool needs_messages() const noexcept = 0;
};

// The tags of the messages among services; the low 32 bits are a channel's id, those above its incarnation.
enum class message_kind : std::uint64_t { hello = 1, verdict = 2, notice = 3, data = 4, credit = 5, offer = 6, answer = 7 };
inline constexpr std::uint64_t tag_of(message_kind kind, std::uint32_t id, std::uint32_t incarnation = 0) noexcept {
  return static_cast<std::uint64_t>(kind) << 56 | (incarnation & 0xffffffull) << 32 | id;
}
inline constexpr std::uint64_t kKindMask = 0xffull << 56;

class service {
 public:
  // `cpus`: where the thread runs; empty: anywhere.
  service(link::messenger& messages, run_mode mode, std::chrono::nanoseconds wait_timeout, std::vector<int> cpus);
  ~service();  // stops the thread; tasks must have ended

  void add(const std::shared_ptr<channel_core>& channel);
  void add(const std::shared_ptr<channel_core>& channel, std::shared_ptr<service_task> task);
  // The owner has closed the channel. If streams have work of it before them, that is an error of both ends, so that those
  // which wait are let go. That it is closed the peer hears once our streams are past all of it and what they put has been
  // carried: it may use the words again then, which our streams write. `free` is called on the service thread once no stream
  // of either end can touch our words any more. False from flush(): some had not got so far within the limit.
  void close(const std::shared_ptr<channel_core>& channel, std::function<void()> free);
  bool flush(std::chrono::milliseconds limit);
  // Puts the channel into error and lets its streams go; tells the peer unless it is gone. Any thread.
  void fail(channel_core& channel, int code, const std::string& why);
  void set_mode(run_mode mode);
  // Something changed that the thread looks at in its slow rounds only; wakes it if it sleeps.
  void wake();
  // By which it is woken, also by peers: who queues work asks it after having published (idle_wait.hpp).
  const std::shared_ptr<wake_bell>& bell() const noexcept { return bell_; }
  std::string report() const;

 private:
  struct notice {
    std::uint32_t id = 0;
    std::int32_t code = 0;  // 0: closed
    std::uint32_t incarnation = 0;
    std::uint32_t reserved = 0;
    carried sent;            // of a closed one
    std::uint64_t puts = 0;  // signals included
  };
  // How far the end of a channel has come. Service thread only.
  struct ending {
    bool is_stopped = false, is_drained = false;  // the task
    bool is_told = false;                         // the peer, that we closed
    bool is_peer_dead = false;
    std::optional<notice> theirs;  // the peer has closed
    std::uint64_t stopped_at = 0;
  };
  struct entry {
    std::shared_ptr<channel_core> channel;
    std::shared_ptr<service_task> task;
    std::function<void()> free;  // set by close()
    std::shared_ptr<ending> end = std::make_shared<ending>();
  };

  void run(const std::vector<int>& cpus);
  bool round(std::uint64_t now_ns);
  void look_at(entry& managed, std::uint64_t now_ns);
  void look_at_all(std::uint64_t now_ns);
  void look_for_end(entry& managed, std::uint64_t now_ns);
  bool can_free(const entry& managed, std::uint64_t now_ns) const;
  void look_for_stuck(channel_core& channel, std::uint64_t now_ns);
  bool take_notices();
  void tell(int peer, const notice& message);
  void rest(std::uint64_t now_ns);
  bool is_work_expected() const;
  void deep_sleep();
  bool doze(std::chrono::nanoseconds limit);

  link::messenger& messages_;
  const std::chrono::nanoseconds wait_timeout_;
  const std::shared_ptr<wake_bell> bell_ = wake_bell::make();
  std::atomic<run_mode> mode_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::uint64_t> rounds_{0}, naps_{0}, sleeps_{0}, wakes_{0};

  mutable std::mutex mutex_;  // of entries_ and what follows
  std::condition_variable changed_;
  std::vector<entry> entries_;
  std::atomic<std::uint64_t> changes_{1};  // of what the thread looks at only in its slow rounds

  // Service thread only.
  std::vector<entry> mine_;  // entries_ as of seen_changes_
  std::uint64_t seen_changes_ = 0, last_look_ns_ = 0;
  bool has_tasks_ = false, needs_messages_ = true;
  unsigned quiet_rounds_ = 0, rounds_without_messages_ = 0;
  nap_planner planner_;
  link::request incoming_;
  notice received_;
  struct outgoing {
    std::unique_ptr<notice> message;
    link::request sending;
  };
  std::vector<outgoing> outgoing_;
  std::vector<std::pair<int, notice>> to_tell_;  // under mutex_

  std::thread thread_;
};

}  // namespace pl::stream
