// SPDX-License-Identifier: Apache-2.0
// Calls with random numbers, sizes, structs and pointers from several threads on shared descriptors. Nothing is known of the
// results; the kernel must not complain, and in the end nothing may be left.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

enum { kDescriptors = 3, kThreads = 3, kMilliseconds = 750 };

static int descriptors[kDescriptors];
static uint64_t addresses[4];

static unsigned long any_request(unsigned* random) {
  static const unsigned long kKnown[] = {GDRDRV_IOC_PIN_BUFFER,  GDRDRV_IOC_UNPIN_BUFFER,  GDRDRV_IOC_GET_CB_FLAG,
                                         GDRDRV_IOC_GET_INFO,    GDRDRV_IOC_GET_INFO_V2,   GDRDRV_IOC_GET_ATTR,
                                         GDRDRV_IOC_GET_VERSION, GDRDRV_IOC_PIN_BUFFER_V2, GDRDRV_IOC_REQ_MAPPING_TYPE};
  switch (next_random(random) % 8) {
    case 0:
      return next_random(random) | (unsigned long)next_random(random) << 24;
    case 1:
      return kKnown[next_random(random) % 9] ^ 1ul << next_random(random) % 32;
    default:
      return kKnown[next_random(random) % 9];
  }
}

static uint64_t any_word(unsigned* random) {
  static const uint64_t kEdges[] = {0,          1,          4096,       kGpuPage,  kGpuPage - 1, 3 * kGpuPage,
                                    UINT32_MAX, 1ull << 32, UINT64_MAX, 1ull << 63};
  switch (next_random(random) % 4) {
    case 0:
      return kEdges[next_random(random) % 10];
    case 1:
      return addresses[next_random(random) % 4] + kEdges[next_random(random) % 6];
    case 2:
      return next_random(random) % 64 * 16;  // a handle, as likely as not
    default:
      return (uint64_t)next_random(random) << next_random(random) % 40;
  }
}

static void* any_pointer(unsigned* random, uint64_t* words) {
  switch (next_random(random) % 16) {
    case 0:
      return NULL;
    case 1:
      return (void*)(uintptr_t)any_word(random);
    default:
      return words;
  }
}

static void any_map(int fd, unsigned* random) {
  const size_t bytes = (1 + next_random(random) % 40) * kHostPage;
  const off_t offset =
      (off_t)((next_random(random) % 8 == 0 ? any_word(random) : next_random(random) % 64 * 16) * kHostPage);
  const int flags = next_random(random) % 8 == 0 ? MAP_PRIVATE : MAP_SHARED;
  unsigned char* pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
  if (pointer == MAP_FAILED) return;
  touch(pointer + next_random(random) % bytes);
  touch_write(pointer + next_random(random) % bytes, 1);
  if (next_random(random) % 4 == 0) munmap(pointer, kHostPage);
  if (next_random(random) % 4 == 0) mprotect(pointer, bytes, PROT_READ);
  munmap(pointer, bytes);
}

static void* fuzz(void* argument) {
  unsigned random = (unsigned)(uintptr_t)argument * 7919;
  const uint64_t end = now_ms() + kMilliseconds;
  while (now_ms() < end) {
    for (int i = 0; i < 50; ++i) {
      uint64_t words[8];
      const int fd = descriptors[next_random(&random) % kDescriptors];
      for (int word = 0; word < 8; ++word) words[word] = any_word(&random);
      if (next_random(&random) % 2 == 0) words[0] = addresses[next_random(&random) % 4];
      if (next_random(&random) % 2 == 0) words[1] = kGpuPage;
      if (next_random(&random) % 2 == 0) words[2] = words[3] = 0;
      if (next_random(&random) % 4 == 0) any_map(fd, &random);
      else call(fd, any_request(&random), any_pointer(&random, words));
    }
  }
  return NULL;
}

static void random_calls(void) {
  struct memory memories[4];
  pthread_t threads[kThreads];
  for (int i = 0; i < 4; ++i) {
    memories[i] = memory_new(4 * kGpuPage);
    addresses[i] = memories[i].address;
  }
  for (int i = 0; i < kDescriptors; ++i) descriptors[i] = driver_open();
  for (uintptr_t i = 0; i < kThreads; ++i) CHECK_EQ(pthread_create(&threads[i], NULL, fuzz, (void*)(i + 1)), 0);
  for (int i = 0; i < 10; ++i) {  // memory comes and goes under it
    sleep_ms(kMilliseconds / 12);
    memory_free(&memories[i % 4]);
    memory_close(&memories[i % 4]);
    memories[i % 4] = memory_new(4 * kGpuPage);
    addresses[i % 4] = memories[i % 4].address;
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
}

const struct test kFuzzTests[] = {
    {"random_calls", random_calls, kAnyMode},
    {NULL, NULL, kAnyMode},
};
