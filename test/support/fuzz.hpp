// SPDX-License-Identifier: Apache-2.0
// A fuzz test in two forms: a seeded loop in the test suite, and a libFuzzer program (preset fuzz; docs/store-engine.md,
// "Fuzzing"). A source of the second form defines both functions under PL_LIBFUZZER; fuzz_main.cpp is the rest of the
// program.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace pl::fuzz {

// What the code under test did wrong with this input; empty: nothing.
std::string problem_with(std::span<const std::uint8_t> input);
// A well-formed input, another one for each seed: what libFuzzer starts from and comes back to, so that no corpus has to lie
// in the repository and it gets past what random bytes never pass.
std::string good_input(std::uint32_t seed);

}  // namespace pl::fuzz
