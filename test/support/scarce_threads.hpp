// SPDX-License-Identifier: Apache-2.0
// Threads that cannot be started, as at a limit of processes, which root does not have. A test that uses it lists
// scarce_threads.cpp among its sources: that has a pthread_create of its own.
#pragma once

namespace pl::test {

// While it lives the calling thread, or every thread, starts no more than `left` threads. The simulated GPU's threads are
// its hardware: they do not count. Not nested.
class scarce_threads {
 public:
  enum class limited { callers, everybodys };
  explicit scarce_threads(int left = 0, limited scope = limited::callers);
  ~scarce_threads();
  scarce_threads(const scarce_threads&) = delete;
  scarce_threads& operator=(const scarce_threads&) = delete;
};

}  // namespace pl::test
