// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <pthread.h>

#include <atomic>

namespace pl::py {
namespace {

std::atomic<std::uint32_t> g_number{1};

void count_fork() { g_number.fetch_add(1, std::memory_order_relaxed); }

[[maybe_unused]] const int g_registered = pthread_atfork(nullptr, nullptr, count_fork);

}  // namespace

std::uint32_t process_number() noexcept { return g_number.load(std::memory_order_relaxed); }

}  // namespace pl::py
