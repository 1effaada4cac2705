// SPDX-License-Identifier: Apache-2.0
// life_program <pause-us> <rounds>: whole lives of mappings of its own memory, for ever with rounds 0 (somebody kills it).
// Exit status 0, or the step that failed. Prints "ready" before the first round.
#include <cstdlib>

#include "test/e2e/process.hpp"

int main(int argc, char** argv) {
  using namespace pl::test;
  const int pause_us = argc > 1 ? std::atoi(argv[1]) : 0;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1;
  simulated_cuda();
  const current_device context;
  const device_buffer memory(8 << 20);
  std::puts("ready");
  std::fflush(stdout);
  for (int i = 0; rounds == 0 || i < rounds; ++i) {
    gdr_t g = gdr_open();
    if (g == nullptr) return 20;
    for (std::uint64_t j = 0; j < 4; ++j)
      if (const int step = whole_life(g, memory.pointer(), std::size_t{65536} << (j * 2), j)) return step;
    if (gdr_close(g) != 0) return 21;
    if (pause_us > 0) usleep(static_cast<useconds_t>(pause_us));
  }
  return 0;
}
