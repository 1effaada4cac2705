// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pl {

// Whether the variable names a file, a folder, a library or a host. In a program with more rights than the user who
// started it (setuid, file capabilities), env_read() treats such a variable as unset: otherwise the file would be read,
// written or loaded with those rights.
bool env_names_a_place(const char* name) noexcept;

}  // namespace pl
