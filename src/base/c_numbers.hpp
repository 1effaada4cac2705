// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale.h>

namespace pl {

// While it exists, this thread's printf, scanf and strtod read and write numbers as in the C locale. A program may have
// chosen another one (setlocale, Python's locale module) with a comma where files, JSON and settings have a point.
// format() does this by itself.
class c_numbers {
 public:
  c_numbers() noexcept;
  c_numbers(const c_numbers&) = delete;
  c_numbers& operator=(const c_numbers&) = delete;
  ~c_numbers() { uselocale(before_); }

 private:
  locale_t before_;
};

}  // namespace pl
