// SPDX-License-Identifier: Apache-2.0
#include "os/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace pl {
namespace detail {
namespace {

std::atomic<std::uint32_t> g_fallback_word{0};
std::atomic<std::uint32_t> g_last_epoch{0};  // inherited by children, so their numbers continue after ours

void wipe_in_child() { g_epoch->store(0, std::memory_order_relaxed); }

}  // namespace

// A usable word from the first instruction on; replaced by the wiped page when the library is loaded.
std::atomic<std::uint32_t>* g_epoch = &g_fallback_word;

namespace {

__attribute__((constructor)) void set_up_epoch_page() {
  const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) {
    madvise(page, bytes, MADV_WIPEONFORK);
    g_epoch = new (page) std::atomic<std::uint32_t>(0);
  }
  pthread_atfork(nullptr, nullptr, wipe_in_child);
  claim_process_epoch();
}

}  // namespace
}  // namespace detail

std::uint32_t claim_process_epoch() noexcept {
  std::uint32_t current = detail::g_epoch->load(std::memory_order_acquire);
  if (current != 0) return current;
  std::uint32_t fresh = detail::g_last_epoch.fetch_add(1) + 1;
  if (fresh == 0) fresh = detail::g_last_epoch.fetch_add(1) + 1;
  if (detail::g_epoch->compare_exchange_strong(current, fresh)) return fresh;
  return current;
}

}  // namespace pl
