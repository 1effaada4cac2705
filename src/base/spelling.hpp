// SPDX-License-Identifier: Apache-2.0
// "did you mean ...": the nearest known word to a misspelt one. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pl {

// How many letters must be inserted, deleted, replaced or swapped with their neighbour to make one word the other.
std::size_t spelling_distance(std::string_view one, std::string_view other);

// The nearest of `known`; empty if none is near enough: a third of the word's letters, three at most. Case does
// not count. The first of several that are equally near. A word that begins a single known one (`band`) means that one.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace pl
