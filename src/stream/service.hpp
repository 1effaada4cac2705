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
#include <string>
#include <thread>
#include <vector>

#include "channel_core.hpp"
#include "context.hpp"
#include "messenger.hpp"

namespace pl::stream {

// Part of the thread's round. Both calls on the service thread.
class service_task {
 public:
  virtual ~service_task() = default;
  virtual bool advance() = 0;       // true: something moved
  virtual void stop(int code) = 0;  // its channel is in error: give up what is under way, write no word any more
};

// The tags of the messages among services; the low 32 bits are a channel's id.
enum class message_kind : std::uint64_t { hello = 1, verdict = 2, notice = 3, data = 4, credit = 5 };
inline constexpr std::uint64_t tag_of(message_kind kind, std::uint32_t id) noexcept {
  return static_cast<std::uint64_t>(kind) << 56 | id;
}
inline constexpr std::uint64_t kKindMask = 0xffull << 56;

class service {
 public:
  // `release` poisons words where the CPU cannot write them (a CUDA call, so made on a thread of its own); null otherwise.
  service(link::messenger& messages, run_mode mode, std::chrono::nanoseconds wait_timeout, int cpu);
  ~service();  // stops the thread; tasks must have ended

  void add(const std::shared_ptr<channel_core>& channel);
  void add(const std::shared_ptr<channel_core>& channel, std::shared_ptr<service_task> task);
  // The owner has closed the channel: the peer is told, and `free` is called on the service thread once no stream can touch
  // its words any more. False from flush(): some had not got so far within the limit.
  void close(const std::shared_ptr<channel_core>& channel, std::function<void()> free);
  bool flush(std::chrono::milliseconds limit);
  // Puts the channel into error and lets its streams go; tells the peer unless it is gone. Any thread.
  void fail(channel_core& channel, int code, const std::string& why);
  void set_mode(run_mode mode);
  // Wakes the thread if it sleeps.
  void wake();
  std::string report() const;

 private:
  struct entry {
    std::shared_ptr<channel_core> channel;
    std::shared_ptr<service_task> task;
    std::function<void()> free;  // set by close()
    bool is_task_stopped = false;
  };
  struct notice {
    std::uint32_t id = 0;
    std::int32_t code = 0;  // 0: closed
  };

  void run(int cpu);
  bool round(std::uint64_t now_ns);
  void look_at(entry& of, std::uint64_t now_ns);
  void look_for_stuck(channel_core& channel, std::uint64_t now_ns);
  bool take_notices();
  void tell(int peer, const notice& what);
  void idle(std::uint64_t idle_since_ns);

  link::messenger& messages_;
  const std::chrono::nanoseconds wait_timeout_;
  std::atomic<run_mode> mode_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::uint64_t> rounds_{0}, sleeps_{0};

  mutable std::mutex mutex_;  // of entries_ and what follows
  std::condition_variable changed_;
  std::vector<entry> entries_;
  bool is_woken_ = false;

  // Service thread only.
  link::request incoming_;
  notice received_;
  struct outgoing {
    std::unique_ptr<notice> what;
    link::request sending;
  };
  std::vector<outgoing> outgoing_;
  std::vector<std::pair<int, notice>> to_tell_;  // under mutex_

  std::thread thread_;
};

}  // namespace pl::stream
