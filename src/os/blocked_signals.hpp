// SPDX-License-Identifier: Apache-2.0
// For whoever starts a thread of the library's own: a thread inherits the mask of its maker, and the application's signals
// are for the application's threads. The maker's mask comes back at the end of the scope, also when the thread could not be
// started.
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

// A thread of the library's own. Throws std::system_error where none can be started (ulimit -u, -v, a full cgroup): for
// constructors whose maker turns that into no_thread().
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

// The same, or EAGAIN with a reason that names the thread and the limit.
template <class Thread = std::thread, class Body>
result<Thread> try_start_thread(const char* role, Body&& body) {
  try {
    return start_thread<Thread>(std::forward<Body>(body));
  } catch (const std::system_error&) { return no_thread(role); }
}

}  // namespace pl
