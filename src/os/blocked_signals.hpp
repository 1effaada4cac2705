// SPDX-License-Identifier: Apache-2.0
// For code that starts one of the library's own threads: a thread inherits its creator's signal mask, and the
// application's signals are for the application's threads. The destructor restores the creator's mask, also if the
// thread could not be started.
#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.hpp"

namespace pl {

class blocked_signals {
 public:
  blocked_signals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;
  ~blocked_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Starts one of the library's own threads. Throws std::system_error if none can be started (ulimit -u, -v, a full
// cgroup): for constructors whose caller turns that into no_thread().
template <class Thread = std::thread, class Body>
Thread start_thread(Body&& body) {
  const blocked_signals during_start;
  return Thread(std::forward<Body>(body));
}

// `role` completes "the thread that ...".
inline failure no_thread(const char* role) {
  return {EAGAIN, std::string("the thread that ") + role +
                      " could not be started: raise the limit of processes (ulimit -u, or the container's)"};
}

// The same, but returns EAGAIN with a reason that names the thread and the limit.
template <class Thread = std::thread, class Body>
result<Thread> try_start_thread(const char* role, Body&& body) {
  try {
    return start_thread<Thread>(std::forward<Body>(body));
  } catch (const std::system_error&) { return no_thread(role); }
}

}  // namespace pl
