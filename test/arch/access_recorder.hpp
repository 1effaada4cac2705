// SPDX-License-Identifier: Apache-2.0
// Records every single access that a piece of code makes to one page: x86-64 Linux, tests only.
//
// Method: the page is made inaccessible, so that each instruction that touches it faults. The handler opens the page and
// sets the trap flag; the CPU executes that one instruction and traps; the second handler looks which bytes changed,
// closes the page again and goes on. So an instruction is one record however the compiler arranged it, and a store's
// width is what it changed (the caller makes sure that every byte it writes differs from what was there).
//
// One recorder at a time, in one thread. Not with ThreadSanitizer (it delays signals).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pl::arch::check {

struct access {
  bool is_write;
  std::size_t offset;  // of the faulting byte in the page; for a write of the first byte that changed
  std::size_t bytes;   // of a write: from the first changed byte to the last. Of a read: 0, the fault does not tell
};

// Runs `code(page)` and returns its accesses to the page, in program order. The page's contents stay.
class access_recorder {
 public:
  access_recorder();
  ~access_recorder();
  access_recorder(const access_recorder&) = delete;
  access_recorder& operator=(const access_recorder&) = delete;

  static constexpr std::size_t kPageBytes = 4096;
  unsigned char* page() const;
  std::vector<access> record(const std::function<void()>& code);

  // False where the method does not work (no trap flag in a sandbox or an emulator).
  static bool works();
};

}  // namespace pl::arch::check
