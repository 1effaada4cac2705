// SPDX-License-Identifier: Apache-2.0
// What the guest's test programs share: the mock GPU's memory, the driver's calls, a runner. Every test runs in a process of
// its own; when it has ended, nothing of it may be left: no pin in the driver, no page, table or address in the mock.
#ifndef LAB_H
#define LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "gdrdrv_ioctl.h"
#include "sim/board_file.h"

enum { kGpuPage = 65536, kHostPage = 4096 };

// ---- Checks: print where and end the test's process ----------------------------------------------------------------
void fail_test(const char* file, int line, const char* format, ...) __attribute__((format(printf, 3, 4), noreturn));
#define FAIL(...) fail_test(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                      \
  do {                                        \
    if (!(condition)) FAIL("%s", #condition); \
  } while (0)
#define CHECK_EQ(got, wanted)                                                                                  \
  do {                                                                                                         \
    const long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                    \
    if (got_ != wanted_) FAIL("%s is %lld (0x%llx), not %lld", #got, got_, (unsigned long long)got_, wanted_); \
  } while (0)

// ---- GPU memory ----------------------------------------------------------------------------------------------------
struct memory {
  int fd;
  uint64_t address;  // the "device pointer", 0 when freed
  size_t bytes;
  unsigned char* view;  // the GPU's own view of the bytes, whatever the driver under test does
};
struct memory memory_new(size_t bytes);
void memory_free(struct memory* memory);   // as cuMemFree: the addresses end; the bytes stay visible in `view`
void memory_close(struct memory* memory);  // frees, and gives everything back
void memory_fill(const struct memory* memory, unsigned seed);
struct board_statistics statistics(void);
uint64_t pte_of(const volatile void* address);

// ---- The driver ----------------------------------------------------------------------------------------------------
int driver_open(void);
bool driver_is_persistent(void);
// Each returns 0 or the errno.
int call(int fd, unsigned long request, void* argument);
int pin_v1(int fd, uint64_t address, uint64_t bytes, uint64_t* handle);
int pin(int fd, uint64_t address, uint64_t bytes, uint64_t* handle);
int unpin(int fd, uint64_t handle);
int map(int fd, uint64_t handle, size_t bytes, unsigned char** out);
int mapping_type(int fd, uint64_t handle, uint32_t* type);
int was_revoked(int fd, uint64_t handle, uint32_t* flag);

// A whole one that must work.
struct mapping {
  int fd;
  uint64_t handle;
  size_t bytes;
  unsigned char* pointer;
};
struct mapping map_all(int fd, const struct memory* memory);

// ---- Odds and ends -------------------------------------------------------------------------------------------------
// 0, or the signal that reading (or writing) this byte raises.
int touch(volatile unsigned char* address);
int touch_write(volatile unsigned char* address, unsigned char value);
int in_child(int (*body)(void* argument), void* argument);  // its exit code, or 128 + signal
unsigned next_random(unsigned* state);
void sleep_ms(unsigned milliseconds);
uint64_t now_ms(void);
void set_mock(const char* parameter, long value);  // and put_mock_back puts all back
void put_mock_back(void);
long read_number(const char* path);

// ---- Tests ---------------------------------------------------------------------------------------------------------
enum needs { kAnyMode, kPersistent, kRevocable };
struct test {
  const char* name;
  void (*body)(void);
  enum needs needs;
};
extern const struct test kBasicTests[], kIsolationTests[], kAbuseTests[], kRefusalTests[], kFuzzTests[], kStormTests[],
    kLastTests[];

#endif
