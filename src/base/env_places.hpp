// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pl {

// Whether the variable names a file, a folder, a library or a host. In a program that has more rights than who started it
// (setuid, file capabilities) env_read() takes such a variable as not set: the file would be read, written or loaded with
// those rights.
bool env_names_a_place(const char* name) noexcept;

}  // namespace pl
