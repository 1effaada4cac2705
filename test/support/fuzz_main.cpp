// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/support/fuzz.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string problem = pl::fuzz::problem_with({data, size});
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}

// Now and then a good input instead of a change of the old one; all others are changes of what was new to libFuzzer.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  constexpr unsigned kGoodOneIn = 64;
  if (size > 1 && seed % kGoodOneIn != 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string good = pl::fuzz::good_input(seed / kGoodOneIn);
  const std::size_t bytes = std::min(good.size(), max_size);
  std::memcpy(data, good.data(), bytes);
  return bytes;
}
