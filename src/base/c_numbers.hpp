// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale.h>

namespace pl {

// While it lives, this thread's printf, scanf and strtod write and read numbers as the C locale does. A program may have
// chosen another one (setlocale, Python's locale module), which has a comma where files, JSON and settings have a point.
// format() does so by itself.
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
