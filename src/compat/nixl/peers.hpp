// SPDX-License-Identifier: Apache-2.0
// Another agent of this host as seen by the one that talks to it: one connection for notifications and copies, and a
// short one each time memory is requested. Thread-safe.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "compat/nixl/memory.hpp"
#include "compat/nixl/peer_messages.hpp"

namespace pl::nixl {

// A copy that another agent makes for us.
struct remote_copy {
  enum class state : int { idle, in_flight, done, failed, lost };
  std::atomic<state> now{state::idle};
  std::string reason;  // once it has failed
};

class peer {
 public:
  // ECONNREFUSED, EACCES, ...: it is not there, or not ours.
  static result<std::shared_ptr<peer>> open(const address& target, const std::string& own_name);

  bool is_lost() const noexcept { return is_lost_.load(std::memory_order_acquire); }
  // Also checked with the kernel, because the text may be one that we have sent to it.
  bool is_this_process() const { return target_.process == this_process() && process_ == ::getpid(); }
  const address& target() const noexcept { return target_; }
  int process() const noexcept { return process_; }  // 0: not visible from here
  int socket() const noexcept { return socket_.get(); }
  int process_descriptor() const noexcept { return process_fd_.get(); }  // readable when it has ended; -1: not to be had

  status notify(const std::string& text);
  // GPU memory that it has registered.
  result<std::shared_ptr<memory>> fetch(gpu_table& gpus, std::uint64_t id);
  // GPU memory of ours is handed over at its first copy.
  status begin_copy(const std::shared_ptr<remote_copy>& copy, const std::vector<std::shared_ptr<memory>>& used,
                    bool is_write, const std::vector<copy_block>& blocks);
  void drop(std::uint64_t memory_id);

  // Something has arrived, perhaps a part of a message, or the connection has ended. Does not wait. Called by one
  // thread.
  void receive();
  void lose() noexcept;

 private:
  peer(address target, unique_fd socket, std::string own_name);
  status send(message type, std::uint64_t id, std::int32_t code, std::span<const char> payload);
  status offer(const memory& own);

  const address target_;
  const std::string own_name_;
  const unique_fd socket_;
  int process_ = 0;
  unique_fd process_fd_;
  std::atomic<bool> is_lost_{false};

  std::mutex sending_;  // of one message; and of what was handed over
  std::set<std::uint64_t> offered_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<remote_copy>> copies_;
  std::uint64_t next_copy_ = 1;
  std::string begun_;  // of the message that comes
};

}  // namespace pl::nixl
