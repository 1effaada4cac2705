// SPDX-License-Identifier: Apache-2.0
// Memory freed under a mapping, mappings cut and moved, handles that are not, modules unloaded in use.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

// Every page of it faults.
static void expect_dead(const struct mapping* m) {
  for (size_t offset = 0; offset < m->bytes; offset += kHostPage) {
    CHECK_EQ(touch(m->pointer + offset), SIGBUS);
    CHECK_EQ(touch_write(m->pointer + offset, 1), SIGBUS);
  }
}

static void unpin_under_a_mapping(void) {
  struct memory memory = memory_new(3 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  memset(m.pointer, 1, m.bytes / 2);  // part of it was never touched
  CHECK_EQ(unpin(m.fd, m.handle), 0);
  expect_dead(&m);
  CHECK_EQ(unpin(m.fd, m.handle), EINVAL);
  CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  memory_close(&memory);
}

static void free_under_a_mapping_revokes(void) {
  struct memory memory = memory_new(3 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  uint32_t flag = 77;
  unsigned char* again = NULL;
  memset(m.pointer, 1, m.bytes / 2);
  CHECK_EQ(was_revoked(m.fd, m.handle, &flag), 0);
  CHECK_EQ(flag, 0);
  memory_close(&memory);
  struct memory next = memory_new(3 * kGpuPage);  // somebody else's now
  expect_dead(&m);
  CHECK_EQ(was_revoked(m.fd, m.handle, &flag), 0);
  CHECK_EQ(flag, 1);
  CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  CHECK_EQ(map(m.fd, m.handle, m.bytes, &again), EINVAL);
  CHECK_EQ(unpin(m.fd, m.handle), 0);
  CHECK_EQ(unpin(m.fd, m.handle), EINVAL);
  memory_close(&next);
}

static void free_under_a_mapping_keeps(void) {
  struct memory memory = memory_new(3 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  uint32_t flag = 77;
  memory_fill(&memory, 5);
  unsigned char copy[3 * kGpuPage];
  memcpy(copy, m.pointer, m.bytes);
  memory_close(&memory);
  struct memory next = memory_new(3 * kGpuPage);
  memset(next.view, 0xee, next.bytes);
  CHECK(memcmp(copy, m.pointer, m.bytes) == 0);
  CHECK_EQ(was_revoked(m.fd, m.handle, &flag), 0);
  CHECK_EQ(flag, 0);
  CHECK_EQ(unpin(m.fd, m.handle), 0);
  expect_dead(&m);
  memory_close(&next);
}

// Part of the pinned range is freed: the pin ends as a whole.
static void free_one_of_two(void) {
  struct memory a = memory_new(kGpuPage), b = memory_new(kGpuPage);
  struct board_unbind old = {b.address, b.bytes};
  CHECK_EQ(ioctl(b.fd, BOARD_IOC_UNBIND, &old), 0);
  struct board_bind behind = {a.address + kGpuPage, kGpuPage, 0};
  CHECK_EQ(ioctl(b.fd, BOARD_IOC_BIND, &behind), 0);
  b.address = behind.address;
  const int fd = driver_open();
  struct mapping m = {fd, 0, 2 * kGpuPage, NULL};
  CHECK_EQ(pin(fd, a.address, m.bytes, &m.handle), 0);
  CHECK_EQ(map(fd, m.handle, m.bytes, &m.pointer), 0);
  memset(m.pointer, 1, m.bytes);
  CHECK_EQ(b.view[0], 1);
  memory_free(&b);
  if (driver_is_persistent()) CHECK_EQ(touch(m.pointer + kGpuPage), 0);
  else expect_dead(&m);
  CHECK_EQ(unpin(fd, m.handle), 0);
}

// ---- Mappings that are cut, moved, grown -------------------------------------------------------------------------------

static void mappings_are_whole(void) {
  struct memory memory = memory_new(4 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  uint32_t type = 0;
  void* elsewhere = mmap(NULL, 16 * kGpuPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(elsewhere != MAP_FAILED);
  m.pointer[0] = 1;
  CHECK(munmap(m.pointer, kGpuPage) != 0);
  CHECK(munmap(m.pointer + m.bytes - kHostPage, kHostPage) != 0);
  CHECK(munmap(m.pointer + kGpuPage, kGpuPage) != 0);
  CHECK(mprotect(m.pointer, kHostPage, PROT_READ) != 0);
  CHECK(madvise(m.pointer, kHostPage, MADV_DOFORK) != 0);  // would make it two, or be inherited
  CHECK(mremap(m.pointer, m.bytes, 2 * m.bytes, MREMAP_MAYMOVE) == MAP_FAILED);
  CHECK(mremap(m.pointer, m.bytes, m.bytes / 2, 0) == MAP_FAILED);
  CHECK(mremap(m.pointer, m.bytes, m.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == MAP_FAILED);
  CHECK(mremap(m.pointer, 0, m.bytes, MREMAP_MAYMOVE) == MAP_FAILED);
  CHECK(mremap(m.pointer, m.bytes, m.bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED);
  CHECK_EQ(mapping_type(m.fd, m.handle, &type), 0);
  CHECK_EQ(type, 1);
  memset(m.pointer, 2, m.bytes);
  CHECK_EQ(memory.view[m.bytes - 1], 2);
  CHECK_EQ(madvise(m.pointer, m.bytes, MADV_DONTFORK), 0);  // the whole of it may be advised, as the library does
  CHECK_EQ(mprotect(m.pointer, m.bytes, PROT_READ), 0);
  CHECK_EQ(touch_write(m.pointer, 1), SIGSEGV);
  CHECK_EQ(mprotect(m.pointer, m.bytes, PROT_READ | PROT_WRITE), 0);
  m.pointer[5] = 9;
  CHECK_EQ(memory.view[5], 9);
  CHECK_EQ(pte_of(m.pointer + 5) & 0x98, 0x08);
  CHECK_EQ(unpin(m.fd, m.handle), 0);
  expect_dead(&m);
  memory_close(&memory);
}

// ---- Handles -----------------------------------------------------------------------------------------------------------

static void expect_unknown(int fd, uint64_t handle) {
  struct gdrdrv_get_info info = {.handle = handle};
  struct gdrdrv_req_mapping_type type = {handle, 0, 0};
  uint32_t value;
  unsigned char* pointer;
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO, &info), EINVAL);
  CHECK_EQ(mapping_type(fd, handle, &value), EINVAL);
  CHECK_EQ(was_revoked(fd, handle, &value), EINVAL);
  CHECK_EQ(call(fd, GDRDRV_IOC_REQ_MAPPING_TYPE, &type), EINVAL);
  CHECK_EQ(map(fd, handle & 0xffffffff, kHostPage, &pointer), EINVAL);
  CHECK_EQ(unpin(fd, handle), EINVAL);
}

// The stock driver took the oldest pin for every handle that it did not know.
static void unknown_handles(void) {
  const int fd = driver_open(), other = driver_open();
  struct memory memory = memory_new(4 * kGpuPage);
  expect_unknown(fd, 0);
  const struct mapping a = map_all(fd, &memory), b = map_all(fd, &memory);
  uint64_t gone = 0;
  CHECK_EQ(pin(fd, memory.address, kGpuPage, &gone), 0);
  CHECK_EQ(unpin(fd, gone), 0);
  expect_unknown(fd, gone);
  expect_unknown(fd, a.handle + 1);  // inside a range that is taken
  expect_unknown(fd, b.handle + 12345);
  expect_unknown(fd, 0xffffffff);
  expect_unknown(fd, a.handle | (1ull << 32));
  expect_unknown(fd, UINT64_MAX);
  expect_unknown(other, a.handle);
  memset(a.pointer, 3, a.bytes);  // all of it is still there
  CHECK_EQ(b.pointer[7], 3);
  CHECK_EQ(unpin(fd, a.handle), 0);
  CHECK_EQ(b.pointer[8], 3);
  CHECK_EQ(unpin(fd, b.handle), 0);
  memory_close(&memory);
}

// Handles are ranges that do not overlap, below 2^32, and not given out again at once.
static void handles_are_ranges(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(4 * kGpuPage);
  uint64_t live[64], last = UINT64_MAX;
  for (int i = 0; i < 64; ++i) {
    CHECK_EQ(pin(fd, memory.address, (size_t)(1 + i % 4) * kGpuPage, &live[i]), 0);
    CHECK(live[i] < 1ull << 32);
  }
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 64; ++k) CHECK(i == k || live[k] >= live[i] + (uint64_t)(1 + i % 4) * 16 || live[k] < live[i]);
  for (int i = 0; i < 200; ++i) {
    uint64_t next = 0;
    CHECK_EQ(pin(fd, memory.address, kGpuPage, &next), 0);
    CHECK(next != last);
    CHECK_EQ(unpin(fd, next), 0);
    last = next;
  }
  for (int i = 0; i < 64; i += 2) CHECK_EQ(unpin(fd, live[i]), 0);
  for (int i = 1; i < 64; i += 2) CHECK_EQ(unpin(fd, live[i]), 0);
  memory_close(&memory);
}

// ---- Closing and unloading -----------------------------------------------------------------------------------------------

static void close_with_all_open(void) {
  struct memory memory = memory_new(2 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  CHECK_EQ(close(m.fd), 0);  // the mapping keeps the file
  m.pointer[3] = 4;
  CHECK_EQ(memory.view[3], 4);
  CHECK_EQ(statistics().persistent_tables + statistics().revocable_tables, 1);
  CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  CHECK_EQ(statistics().persistent_tables + statistics().revocable_tables, 0);
  memory_close(&memory);
}

static int unload(const char* name) { return syscall(SYS_delete_module, name, O_NONBLOCK) == 0 ? 0 : errno; }

static void unload_is_refused_in_use(void) {
  struct memory memory = memory_new(kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  CHECK(unload("gdrdrv") != 0);
  CHECK_EQ(close(m.fd), 0);
  CHECK(unload("gdrdrv") != 0);    // a mapping is enough
  CHECK(unload("mock_gpu") != 0);  // used by gdrdrv
  m.pointer[0] = 1;
  memory_close(&memory);
}

// ---- Races, with the window held open
// --------------------------------------------------------------------------------------

static void* free_it(void* argument) {
  sleep_ms(20);
  memory_free(argument);
  return NULL;
}

// The memory is freed after the GPU driver has given its pages and before its call has returned.
static void free_while_pinning(void) {
  struct memory memory = memory_new(2 * kGpuPage);
  const int fd = driver_open();
  const bool persistent = driver_is_persistent();
  uint64_t handle = 0;
  pthread_t thread;
  set_mock("get_wait_ms", 60);
  CHECK_EQ(pthread_create(&thread, NULL, free_it, &memory), 0);
  const int rc = pin(fd, memory.address, memory.bytes, &handle);
  pthread_join(thread, NULL);
  set_mock("get_wait_ms", 0);
  CHECK_EQ(rc, persistent ? 0 : EINVAL);
  if (persistent) CHECK_EQ(unpin(fd, handle), 0);
  CHECK_EQ(read_number("/proc/driver/gdrdrv/nv_get_pages_refcount"), 0);
  memory_close(&memory);
}

struct mapper {
  struct mapping m;
  unsigned started;
};

static void* map_it(void* argument) {
  struct mapper* mapper = argument;
  __atomic_store_n(&mapper->started, 1, __ATOMIC_RELEASE);
  if (map(mapper->m.fd, mapper->m.handle, mapper->m.bytes, &mapper->m.pointer) != 0) mapper->m.pointer = NULL;
  return NULL;
}

// A free that runs during mmap: whoever wins, nothing may be seen through the mapping afterwards.
static void free_while_mapping(void) {
  const int fd = driver_open();
  unsigned random = 3;
  for (int round = 0; round < 60; ++round) {
    struct memory memory = memory_new(2 * kGpuPage);
    struct mapper mapper = {{fd, 0, memory.bytes, NULL}, 0};
    pthread_t thread;
    CHECK_EQ(pin(fd, memory.address, memory.bytes, &mapper.m.handle), 0);
    CHECK_EQ(pthread_create(&thread, NULL, map_it, &mapper), 0);
    while (__atomic_load_n(&mapper.started, __ATOMIC_ACQUIRE) == 0) sched_yield();
    usleep(next_random(&random) % 300);
    memory_free(&memory);
    pthread_join(thread, NULL);
    if (mapper.m.pointer != NULL) {
      expect_dead(&mapper.m);
      CHECK_EQ(munmap(mapper.m.pointer, mapper.m.bytes), 0);
    }
    CHECK_EQ(unpin(fd, mapper.m.handle), 0);
    memory_close(&memory);
  }
}

const struct test kAbuseTests[] = {
    {"unpin_under_a_mapping", unpin_under_a_mapping, kAnyMode},
    {"free_under_a_mapping_revokes", free_under_a_mapping_revokes, kRevocable},
    {"free_under_a_mapping_keeps", free_under_a_mapping_keeps, kPersistent},
    {"free_one_of_two", free_one_of_two, kAnyMode},
    {"mappings_are_whole", mappings_are_whole, kAnyMode},
    {"unknown_handles", unknown_handles, kAnyMode},
    {"handles_are_ranges", handles_are_ranges, kAnyMode},
    {"close_with_all_open", close_with_all_open, kAnyMode},
    {"unload_is_refused_in_use", unload_is_refused_in_use, kAnyMode},
    {"free_while_pinning", free_while_pinning, kAnyMode},
    {"free_while_mapping", free_while_mapping, kRevocable},
    {NULL, NULL, kAnyMode},
};
