// SPDX-License-Identifier: Apache-2.0
// The file of the running program.
#pragma once

#include <string>

namespace pl {

// "/proc/self/exe", which stays right when the file is renamed or replaced. Where /proc is not mounted: the path by which it
// was started, from the root on if it is still there.
std::string own_program();

// The same with links followed, for what lies beside the program; empty if it cannot be found.
std::string own_program_file();

}  // namespace pl
