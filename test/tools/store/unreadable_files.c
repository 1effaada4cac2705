// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program: files whose paths contain UNREADABLE_PATH give EIO from byte UNREADABLE_FROM on, for
// UNREADABLE_BYTES.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef fread_unlocked

static long number_of(const char* name) {
  const char* const text = getenv(name);
  return text != NULL ? atol(text) : 0;
}

static int is_unreadable(int fd, long begin, size_t bytes) {
  const char* const wanted = getenv("UNREADABLE_PATH");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = wanted != NULL ? readlink(link, path, sizeof path - 1) : -1;
  if (length < 0) return 0;
  path[length] = 0;
  const long first = number_of("UNREADABLE_FROM"), end = first + number_of("UNREADABLE_BYTES");
  return strstr(path, wanted) != NULL && begin < end && begin + (long)bytes > first;
}

ssize_t read(int fd, void* memory, size_t bytes) {
  static ssize_t (*next)(int, void*, size_t);
  if (next == NULL) next = (ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read");
  if (is_unreadable(fd, (long)lseek(fd, 0, SEEK_CUR), bytes)) return errno = EIO, -1;
  return next(fd, memory, bytes);
}

ssize_t pread(int fd, void* memory, size_t bytes, off_t begin) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) next = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  if (is_unreadable(fd, (long)begin, bytes)) return errno = EIO, -1;
  return next(fd, memory, bytes, begin);
}

ssize_t pread64(int fd, void* memory, size_t bytes, off64_t begin) { return pread(fd, memory, bytes, (off_t)begin); }

// What RocksDB reads its logs with.
size_t fread_unlocked(void* memory, size_t size, size_t count, FILE* file) {
  static size_t (*next)(void*, size_t, size_t, FILE*);
  if (next == NULL) next = (size_t(*)(void*, size_t, size_t, FILE*))dlsym(RTLD_NEXT, "fread_unlocked");
  if (is_unreadable(fileno(file), ftell(file), size * count)) {
    file->_flags |= 0x20;  // _IO_ERR_SEEN: ferror() answers
    errno = EIO;
    return 0;
  }
  return next(memory, size, count, file);
}
