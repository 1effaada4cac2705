// SPDX-License-Identifier: Apache-2.0
// Extent files are mostly holes: what reads a whole one asks the filesystem where data begins, and reads no zeros of holes.
// Pure functions of a descriptor; they move its position.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pl::store {

// For a file that find_data() is asked about. What the kernel reads ahead of preallocated blocks that were never written
// would be in the page cache, and it reports what is there as data: a whole file would be read. Has no effect on what is
// read.
inline void stop_readahead(int file) noexcept { (void)::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM); }

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
