// SPDX-License-Identifier: Apache-2.0
// Streams and channels order each other by words that each sees at an address of its own, and under ThreadSanitizer channels
// reach them through the kernel. ThreadSanitizer sees none of that, so the two are told to it here: one object stands for
// all words, since only the physical page names a word and that costs a look-up at each poll. Races that another word's
// order hides are not found; those between threads of the program, which use no such word, are.
#pragma once

#include <cstdint>

#include "base/two_views.hpp"

namespace pl::sim {

inline std::uint64_t word_order_object = 0;

inline void before_storing_word() noexcept { before_store_in_view(reinterpret_cast<std::uint64_t>(&word_order_object)); }
inline void after_loading_word() noexcept { after_load_in_view(reinterpret_cast<std::uint64_t>(&word_order_object)); }

}  // namespace pl::sim
