// SPDX-License-Identifier: Apache-2.0
// Everything at once: threads and processes that pin, map, touch, free and unpin. In each life what is written must be
// there, and after the memory was freed nothing may be seen through a revocable mapping.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

enum { kThreads = 3, kProcesses = 2, kMilliseconds = 750 };

static bool persistent;

// One life. Steps are left out and swapped at random.
static void live(int fd, unsigned* random) {
  struct memory memory = memory_new((1 + next_random(random) % 4) * kGpuPage);
  const unsigned plan = next_random(random);
  const struct mapping m = map_all(fd, &memory);
  const unsigned char value = (unsigned char)(plan >> 8);
  memset(m.pointer, value, m.bytes);
  for (size_t offset = 0; offset < m.bytes; offset += kHostPage / 2)
    if (memory.view[offset] != value) FAIL("wrong byte at %zu", offset);
  if (plan & 1) {
    memory_free(&memory);
    const int signal = touch(m.pointer + next_random(random) % m.bytes);
    if (signal != (persistent ? 0 : SIGBUS)) FAIL("signal %d after the free", signal);
  }
  if (plan & 2) CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  CHECK_EQ(unpin(fd, m.handle), 0);
  if (!(plan & 2)) {
    CHECK_EQ(touch_write(m.pointer, 1), SIGBUS);
    CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  }
  memory_close(&memory);
}

static void* live_on(void* argument) {
  const int fd = *(int*)argument;
  unsigned random = (unsigned)(uintptr_t)&random ^ (unsigned)getpid();
  const uint64_t end = now_ms() + kMilliseconds;
  while (now_ms() < end) live(fd, &random);
  return NULL;
}

static int several_threads(void* unused) {
  (void)unused;
  int fd = driver_open();
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i)
    if (pthread_create(&threads[i], NULL, live_on, &fd) != 0) return 1;
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  return 0;
}

static void lives_at_once(void) {
  pid_t children[kProcesses];
  persistent = driver_is_persistent();
  for (int i = 0; i < kProcesses; ++i)
    if ((children[i] = fork()) == 0) _exit(several_threads(NULL));
  for (int i = 0; i < kProcesses; ++i) {
    int status = 0;
    CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
    CHECK_EQ(status, 0);
  }
}

// ---- One pin, many hands
// -----------------------------------------------------------------------------------------------------

struct shared {
  struct mapping m;
  unsigned go, unpinned;
  struct memory* memory;
};

static void wait_for(struct shared* shared) {
  while (__atomic_load_n(&shared->go, __ATOMIC_ACQUIRE) == 0) {}
}

static void* touch_on(void* argument) {
  struct shared* shared = argument;
  wait_for(shared);
  for (size_t i = 0; i < 40; ++i) touch_write(shared->m.pointer + i * 1711 % shared->m.bytes, 1);
  return NULL;
}

static void* unpin_on(void* argument) {
  struct shared* shared = argument;
  wait_for(shared);
  if (unpin(shared->m.fd, shared->m.handle) == 0) __atomic_fetch_add(&shared->unpinned, 1, __ATOMIC_RELAXED);
  return NULL;
}

static void* free_on(void* argument) {
  struct shared* shared = argument;
  wait_for(shared);
  memory_free(shared->memory);
  return NULL;
}

// The same region is touched, unpinned twice and freed at the same moment.
static void one_pin_many_hands(void) {
  void* (*const kHands[])(void*) = {touch_on, unpin_on, unpin_on, free_on};
  const int fd = driver_open();
  const uint64_t end = now_ms() + kMilliseconds;
  while (now_ms() < end) {
    struct memory memory = memory_new(2 * kGpuPage);
    struct shared shared = {map_all(fd, &memory), 0, 0, &memory};
    pthread_t threads[4];
    for (int i = 0; i < 4; ++i) CHECK_EQ(pthread_create(&threads[i], NULL, kHands[i], &shared), 0);
    __atomic_store_n(&shared.go, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
    CHECK_EQ(shared.unpinned, 1);
    CHECK_EQ(touch(shared.m.pointer), SIGBUS);
    CHECK_EQ(munmap(shared.m.pointer, shared.m.bytes), 0);
    memory_close(&memory);
  }
}

// A free and an unpin at the same moment, with no mapping that would keep the driver's object.
static void free_and_unpin(void) {
  const int fd = driver_open();
  const uint64_t end = now_ms() + kMilliseconds / 2;
  while (now_ms() < end) {
    struct memory memory = memory_new(kGpuPage);
    struct shared shared = {{fd, 0, memory.bytes, NULL}, 0, 0, &memory};
    pthread_t threads[2];
    CHECK_EQ(pin(fd, memory.address, memory.bytes, &shared.m.handle), 0);
    CHECK_EQ(pthread_create(&threads[0], NULL, free_on, &shared), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, unpin_on, &shared), 0);
    __atomic_store_n(&shared.go, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    CHECK_EQ(shared.unpinned, 1);
    memory_close(&memory);
  }
}

const struct test kStormTests[] = {
    {"lives_at_once", lives_at_once, kAnyMode},
    {"one_pin_many_hands", one_pin_many_hands, kAnyMode},
    {"free_and_unpin", free_and_unpin, kAnyMode},
    {NULL, NULL, kAnyMode},
};
