// SPDX-License-Identifier: Apache-2.0
// One process cannot use what another has opened, and nothing outlives its process.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

// EACCES for everything that a stranger tries with the descriptor; 0 if so, else the number of the step.
static int stranger(void* argument) {
  const struct mapping* m = argument;
  struct gdrdrv_get_info info = {.handle = m->handle};
  struct gdrdrv_get_version version;
  unsigned char* pointer;
  uint64_t handle;
  if (call(m->fd, GDRDRV_IOC_GET_VERSION, &version) != EACCES) return 1;
  if (call(m->fd, GDRDRV_IOC_GET_INFO, &info) != EACCES) return 2;
  if (pin(m->fd, 0x7e0000000000, kGpuPage, &handle) != EACCES) return 3;
  if (unpin(m->fd, m->handle) != EACCES) return 4;
  if (map(m->fd, m->handle, kGpuPage, &pointer) != EACCES) return 5;
  return 0;
}

static int touches(void* argument) { return touch(((const struct mapping*)argument)->pointer) == SIGSEGV ? 0 : 1; }

static void fork_inherits_nothing(void) {
  struct memory memory = memory_new(2 * kGpuPage);
  struct mapping m = map_all(driver_open(), &memory);
  struct mapping other = {m.fd, 0, kGpuPage, NULL};
  CHECK_EQ(pin(m.fd, memory.address, kGpuPage, &other.handle), 0);
  m.pointer[9] = 'p';
  CHECK_EQ(in_child(stranger, &other), 0);
  CHECK_EQ(in_child(touches, &m), 0);
  CHECK_EQ(m.pointer[9], 'p');  // the child's end changed nothing
  CHECK_EQ(unpin(m.fd, other.handle), 0);
  memory_close(&memory);
}

static void send_descriptor(int socket, int fd) {
  char byte = 0, space[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(head), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) FAIL("sendmsg");
}

static int receive_descriptor(int socket) {
  char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  int fd = -1;
  if (recvmsg(socket, &message, 0) != 1) FAIL("recvmsg");
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

// A descriptor sent to another process is of no use there, and keeps the pins until it is closed there too.
static void passed_descriptor(void) {
  int pair[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    struct memory memory = memory_new(kGpuPage);
    const struct mapping m = map_all(driver_open(), &memory);
    send_descriptor(pair[1], m.fd);
    if (write(pair[1], &m.handle, sizeof m.handle) != sizeof m.handle) FAIL("write");
    _exit(0);
  }
  struct mapping foreign = {receive_descriptor(pair[0]), 0, kGpuPage, NULL};
  CHECK_EQ(read(pair[0], &foreign.handle, sizeof foreign.handle), sizeof foreign.handle);
  int status = 0;
  CHECK_EQ(waitpid(owner, &status, 0), owner);
  CHECK_EQ(status, 0);
  CHECK_EQ(stranger(&foreign), 0);
  const struct board_statistics held = statistics();
  if (driver_is_persistent()) CHECK_EQ(held.persistent_tables, 1);
  else CHECK_EQ(held.revocable_tables, 0);  // its memory was freed with its process
  CHECK_EQ(close(foreign.fd), 0);
  CHECK_EQ(statistics().persistent_tables, 0);
  CHECK_EQ(statistics().pages_used, 0);
}

static void* use_from_thread(void* argument) {
  const struct mapping* m = argument;
  struct gdrdrv_get_info info = {.handle = m->handle};
  m->pointer[1] = 't';
  return (void*)(intptr_t)call(m->fd, GDRDRV_IOC_GET_INFO, &info);
}

static void threads_may(void) {
  struct memory memory = memory_new(kGpuPage);
  struct mapping m = map_all(driver_open(), &memory);
  pthread_t thread;
  void* result = NULL;
  CHECK_EQ(pthread_create(&thread, NULL, use_from_thread, &m), 0);
  CHECK_EQ(pthread_join(thread, &result), 0);
  CHECK_EQ((intptr_t)result, 0);
  CHECK_EQ(memory.view[1], 't');
  memory_close(&memory);
}

// ---- kill -9 ---------------------------------------------------------------------------------------------------------

enum { kSteps = 7 };

static void live_until(int step, int ready) {
  const int fd = driver_open();
  struct memory memory = step >= 1 ? memory_new(4 * kGpuPage) : (struct memory){0};
  uint64_t handle = 0;
  unsigned char* pointer = NULL;
  if (step >= 2 && pin(fd, memory.address, memory.bytes, &handle) != 0) _exit(1);
  if (step >= 3 && map(fd, handle, memory.bytes, &pointer) != 0) _exit(1);
  if (step >= 4) memset(pointer, 1, memory.bytes);
  if (step >= 5) memory_free(&memory);
  if (step >= 6 && unpin(fd, handle) != 0) _exit(1);
  if (write(ready, "x", 1) != 1) _exit(1);
  for (unsigned i = 0;; ++i)
    if (step == 4) pointer[i % memory.bytes] = (unsigned char)i;  // it dies writing
    else pause();
}

static void killed_at_each_step(void) {
  for (int step = 0; step < kSteps; ++step) {
    int ready[2];
    char byte;
    CHECK_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) live_until(step, ready[1]);
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    close(ready[0]);
    const struct board_statistics left = statistics();
    if (left.pages_used + left.revocable_tables + left.persistent_tables != 0) FAIL("left after step %d", step);
  }
}

static void churn(void) {
  const int fd = driver_open();
  for (;;) {
    struct memory memory = memory_new(2 * kGpuPage);
    const struct mapping m = map_all(fd, &memory);
    m.pointer[0] = 1;
    memory_free(&memory);
    unpin(fd, m.handle);
    munmap(m.pointer, m.bytes);
    memory_close(&memory);
  }
}

// Killed anywhere, many times.
static void killed_anywhere(void) {
  unsigned random = 7;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    if (child == 0) churn();
    usleep(next_random(&random) % 20000);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    const struct board_statistics left = statistics();
    if (left.pages_used + left.revocable_tables + left.persistent_tables != 0) FAIL("left after round %d", round);
  }
}

const struct test kIsolationTests[] = {
    {"fork_inherits_nothing", fork_inherits_nothing, kAnyMode},
    {"passed_descriptor", passed_descriptor, kAnyMode},
    {"threads_may", threads_may, kAnyMode},
    {"killed_at_each_step", killed_at_each_step, kAnyMode},
    {"killed_anywhere", killed_anywhere, kAnyMode},
    {NULL, NULL, kAnyMode},
};
