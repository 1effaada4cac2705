// SPDX-License-Identifier: Apache-2.0
// Extent files are mostly holes: what reads a whole one asks the filesystem where data begins, and reads no zeros of holes.
// Pure functions of a descriptor; they move its position.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pl::store {

// Where the first data at or behind `offset` begins, or the file's end if only a hole follows. Where the filesystem does not
// tell, `offset`.
inline off_t find_data(int file, off_t offset) noexcept {
  const off_t found = ::lseek(file, offset, SEEK_DATA);
  if (found >= 0) return found;
  struct stat facts {};
  if (errno != ENXIO || ::fstat(file, &facts) != 0) return offset;
  return std::max<off_t>(offset, facts.st_size);
}

}  // namespace pl::store
