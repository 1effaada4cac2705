// SPDX-License-Identifier: Apache-2.0
// The file of the running program.
#pragma once

#include <string>

namespace pl {

// "/proc/self/exe", which stays valid when the file is renamed or replaced. If /proc is not mounted: the absolute path
// by which the program was started, if it is still there.
std::string own_program();

// The same with links followed, for files beside the program; empty if it cannot be found.
std::string own_program_file();

}  // namespace pl
