// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace pl::py {
namespace {

std::atomic<pid_t> g_number{getpid()};

void note_fork() { g_number.store(getpid(), std::memory_order_relaxed); }

[[maybe_unused]] const int g_registered = pthread_atfork(nullptr, nullptr, note_fork);

}  // namespace

pid_t process_number() noexcept { return g_number.load(std::memory_order_relaxed); }

}  // namespace pl::py
