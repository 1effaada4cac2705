// SPDX-License-Identifier: Apache-2.0
// A thread that makes progress while no other thread does, and sleeps while nothing happens.
//
// Owns: the thread, from start() until the destructor, which ends it. Threads: call start() and the destructor from one
// thread. Errors: start() fails if the thread could not sleep; the message says why.
#pragma once

#include <stop_token>
#include <thread>

#include "base/status.hpp"

namespace pl::messaging {

struct messenger_core;

class progress_thread {
 public:
  explicit progress_thread(messenger_core& core) : core_(core) {}
  ~progress_thread();
  progress_thread(const progress_thread&) = delete;
  progress_thread& operator=(const progress_thread&) = delete;

  status start();

 private:
  void run(const std::stop_token& stop);
  bool progress_once();

  messenger_core& core_;
  std::jthread thread_;
  int descriptor_ = -1;
};

}  // namespace pl::messaging
