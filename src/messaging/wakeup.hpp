// SPDX-License-Identifier: Apache-2.0
// Sleeping until something happens: who sleeps, and how they are woken.
//
//   a peer of this node   writes into this process's pipe, if its packet finds the mark of a waiter in its shm queue
//   another host          makes UCX's descriptor readable
//   the end of a peer     makes its pidfd readable
//   a thread here         calls note() when it ends an operation, takes a packet, or leaves something to do
//
// One descriptor (epoll) covers the first three and the pipe. A thread arms it before it sleeps. Arming sets the marks, runs
// a barrier in all processes of the node that orders the marks before one last round of progress, and allows the sleep only
// if nothing has happened since the last check. An earlier event is therefore seen, and a later one wakes the thread.
//
// With a progress thread, that thread sleeps on the descriptor, the threads that wait for operations sleep on a condition,
// and the caller's event loop on a descriptor of its own.
//
// Owns: the pipe, the descriptors. Threads: the messenger's lock guards all calls; a descriptor may be slept on without it.
// Errors: errno values of the system when a descriptor is made.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <optional>
#include <span>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

class wakeup {
 public:
  // Identifies the pipe for the processes that write into it.
  struct name {
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
  };
  // The write end of a peer's pipe, opened when it is first needed.
  class doorbell {
   public:
    void set(pid_t pid, const name& pipe) noexcept { pid_ = pid, pipe_ = pipe; }
    // False: the pipe could not be opened, so the peer continues to sleep.
    bool ring() noexcept;

   private:
    pid_t pid_ = 0;
    name pipe_;
    unique_fd fd_;
  };

  result<name> make_pipe();

  // ---- Reports an event that a waiter may wait for. Cheap while nobody sleeps.
  void note() noexcept {
    ++events_;
    if (waiters_ != 0) wake();
  }
  std::uint64_t events() const noexcept { return events_; }

  // ---- The descriptor of the transports
  // Created once. `others`: descriptors that become readable when there is work.
  result<int> descriptor(std::span<const int> others);
  // Adds one more of `others`, if the descriptor exists. A closed descriptor removes itself.
  void watch(int fd) noexcept;
  bool has_descriptor() const noexcept { return static_cast<bool>(epoll_); }
  void drain() noexcept;
  // The owner of the descriptor goes to sleep.
  void let_owner_sleep() noexcept { waiters_ |= kOwner; }
  // Makes the descriptor readable.
  void wake_owner() noexcept;

  // ---- With a progress thread: the caller's own descriptor
  result<int> user_descriptor();
  // EBUSY: something happened since the last call.
  status arm_user();

  // ---- With a progress thread: a thread waits until something happens. `lock` holds the messenger's lock.
  template <class Lock>
  void wait(Lock& lock, std::optional<std::chrono::steady_clock::time_point> deadline) {
    waiters_ |= kThreads;
    if (deadline) happened_.wait_until(lock, *deadline);
    else happened_.wait(lock);
  }

  static failure something_happened();

 private:
  enum : unsigned { kOwner = 1, kUser = 2, kThreads = 4 };
  void wake() noexcept;

  std::uint64_t events_ = 0;
  unsigned waiters_ = 0;
  unique_fd read_end_, write_end_, epoll_, user_;
  std::uint64_t seen_by_user_ = 0;
  std::condition_variable_any happened_;
};

}  // namespace pl::messaging
