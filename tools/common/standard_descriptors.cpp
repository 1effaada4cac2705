// SPDX-License-Identifier: Apache-2.0
#include "tools/common/standard_descriptors.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace pl::tools {

bool fill_standard_descriptors() noexcept {
  for (const int place : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(place, F_GETFD) >= 0) continue;
    // The lowest free number is the place, because those below are taken. The root folder is there in every container, and
    // O_PATH neither reads nor writes. Programs that this one starts shall have it, too: no O_CLOEXEC.
    if (open("/", O_PATH) != place) return false;
  }
  return true;
}

}  // namespace pl::tools
