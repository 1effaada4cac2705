// SPDX-License-Identifier: Apache-2.0
// The planner behind a C copier, for other interfaces of this library.
#pragma once

#include <peerlane/copy.h>

namespace pl::copy {
class planner;
}

namespace pl {

// Keeps the copier from being closed until it is returned. Null on failure: `code` and the thread's last error say why.
copy::planner* borrow_planner(peerlane_copier_t copier, int& code) noexcept;
void return_planner(peerlane_copier_t copier) noexcept;

}  // namespace pl
