// SPDX-License-Identifier: Apache-2.0
// A small number for each thread, so that threads begin their search for something free at different places.
#pragma once

#include <atomic>

namespace pl::copy {

namespace detail {
inline std::atomic<unsigned> g_threads{0};
// Without a dynamic initialiser, which would need a guard of 8 bytes: thread-local storage of the libraries is limited.
inline thread_local unsigned t_thread_number = 0;
}  // namespace detail

inline unsigned thread_index() noexcept {
  if (detail::t_thread_number == 0) [[unlikely]]
    detail::t_thread_number = detail::g_threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return detail::t_thread_number - 1;
}

}  // namespace pl::copy
