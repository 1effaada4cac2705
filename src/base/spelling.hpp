// SPDX-License-Identifier: Apache-2.0
// "did you mean ...": finds the known word nearest to a misspelt one. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pl {

// The number of letters to insert, delete, replace or swap with their neighbour to turn one word into the other.
std::size_t spelling_distance(std::string_view one, std::string_view other);

// The nearest of `known`; empty if none is close enough (a third of the word's letters, at most three). Ignores case;
// the first of several equally near words wins. A word that is the prefix of exactly one known word (`band`) means that
// one.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace pl
