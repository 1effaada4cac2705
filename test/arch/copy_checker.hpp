// SPDX-License-Identifier: Apache-2.0
// Checks one copy implementation against the promises of copy_routines.hpp, byte by byte. Plain functions without
// GoogleTest, so that the same source runs natively and, cross-compiled, under an emulator of another CPU.
//
// Method: host data has bit 7 clear in every byte and canaries have it set, so that a byte that was not copied, or one
// too many, always differs. After each call the whole neighbourhood is compared, not only the ends.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>

#include "arch/copy_dispatch.hpp"

namespace pl::arch {

// For GoogleTest: the name and not the bytes of the pointers.
inline void PrintTo(const copy_ops& ops, std::ostream* out) { *out << ops.name; }

}  // namespace pl::arch

namespace pl::arch::check {

// How many of the alignments and sizes to walk: 1 is exhaustive; n takes every n-th size of the larger ones, and fewer
// alignments. Sanitized and emulated builds are 10 to 50 times slower.
struct effort {
  std::size_t size_step = 1;
  std::size_t host_step = 1;  // of the 64 host alignments, for small sizes
};

// Anonymous pages with an inaccessible page before and after. Throws nothing; aborts when the OS gives no memory.
class guarded_pages {
 public:
  explicit guarded_pages(std::size_t bytes);
  ~guarded_pages();
  guarded_pages(const guarded_pages&) = delete;
  guarded_pages& operator=(const guarded_pages&) = delete;

  unsigned char* begin() const { return begin_; }
  unsigned char* end() const { return begin_ + bytes_; }
  std::size_t bytes() const { return bytes_; }

 private:
  unsigned char* begin_;
  std::size_t bytes_;
};

// Each returns "" or a sentence about the first violation.
//
// Sizes 0..256 at every device and host alignment, then 257..4096 at every device alignment and four host alignments.
std::string check_writes(const copy_ops& ops, const effort& effort);
std::string check_reads(const copy_ops& ops, const effort& effort);
// Sizes 0..320 at every device alignment, larger ones in steps; repeated bytes and 8-byte patterns.
std::string check_fills(const copy_ops& ops, const effort& effort);
// Host and device buffers that start or end exactly at an inaccessible page. A violation is a crash, except where the
// bytes are wrong. A device read may use whole lines, which lie inside the page.
std::string check_page_edges(const copy_ops& ops, const effort& effort);
// One thread writes naturally aligned 1/2/4/8-byte values, another must never see a mixture of two.
std::string check_untorn_words(const copy_ops& ops, std::size_t rounds);

}  // namespace pl::arch::check
