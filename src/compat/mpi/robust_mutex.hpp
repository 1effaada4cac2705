// SPDX-License-Identifier: Apache-2.0
// Mutexes in memory that processes share. The kernel passes one on if its holder dies; what the holder was doing is either
// complete to the last byte or of no use to anybody, so the next one continues.
#pragma once

#include <pthread.h>

#include <cerrno>

namespace pl::mpi {

inline void make_robust(pthread_mutex_t& out) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&out, &kind);
  pthread_mutexattr_destroy(&kind);
}

inline void lock_robust(pthread_mutex_t& mutex) {
  if (pthread_mutex_lock(&mutex) == EOWNERDEAD) pthread_mutex_consistent(&mutex);
}

class robust_lock {
 public:
  explicit robust_lock(pthread_mutex_t& mutex) : mutex_(mutex) { lock_robust(mutex_); }
  ~robust_lock() { pthread_mutex_unlock(&mutex_); }
  robust_lock(const robust_lock&) = delete;
  robust_lock& operator=(const robust_lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace pl::mpi
