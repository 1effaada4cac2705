/* SPDX-License-Identifier: Apache-2.0
 * A program of somebody else's in plain C, on the public headers alone: two processes of one job, device memory to device
 * memory and back. How they meet is the argument: "file:FOLDER" or "host:port" (rank 0 first), or "callbacks" over a socket
 * pair that this program makes itself. Exit code 0: every byte was right. */
#include <errno.h>
#include <peerlane/communicator.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the driver, so that no toolkit is needed. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes);
int cuMemFree_v2(unsigned long long pointer);
int cuMemcpyDtoH_v2(void* host, unsigned long long device, size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long device, const void* host, size_t bytes);

#define LIMIT_MS 20000
#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, peerlane_last_error()); \
      exit(1);                                                                                              \
    }                                                                                                       \
  } while (0)

/* ---- A bootstrap of two over a socket */

struct pair {
  int fd;
  int rank;
};

static int exchange(void* context, const void* mine, size_t size_bytes, void* all) {
  const struct pair* self = context;
  char* theirs = (char*)all + (size_t)(1 - self->rank) * size_bytes;
  size_t sent = 0, got = 0;
  memcpy((char*)all + (size_t)self->rank * size_bytes, mine, size_bytes);
  while (sent < size_bytes || got < size_bytes) {
    ssize_t n =
        sent < size_bytes ? send(self->fd, (const char*)mine + sent, size_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n > 0) sent += (size_t)n;
    if (got == size_bytes) continue;
    n = recv(self->fd, theirs + got, size_bytes - got, sent < size_bytes ? MSG_DONTWAIT : 0);
    if (n == 0) return ECONNRESET;
    if (n > 0) got += (size_t)n;
  }
  return 0;
}

/* ---- One rank */

static void check_bytes(unsigned long long device, unsigned char* host, size_t bytes, int salt) {
  size_t i;
  CHECK(cuMemcpyDtoH_v2(host, device, bytes) == 0);
  for (i = 0; i < bytes; ++i) CHECK(host[i] == (unsigned char)(i * 7 + (size_t)salt));
}

static void pingpong(peerlane_comm_t job, int rank, size_t bytes) {
  struct peerlane_buffer memory, any;
  unsigned char* host = malloc(bytes + 1);
  unsigned long long device = 0;
  struct peerlane_op_info info;
  size_t i;
  CHECK(cuMemAlloc_v2(&device, bytes + 1) == 0);
  memory = peerlane_device_buffer(device, bytes);
  any = peerlane_any_buffer((void*)(uintptr_t)device, bytes);
  for (i = 0; i < bytes; ++i) host[i] = (unsigned char)(i * 7 + (size_t)rank);
  CHECK(cuMemcpyHtoD_v2(device, host, bytes) == 0);
  if (rank == 0) {
    CHECK(peerlane_comm_send(job, 1, memory, 5, LIMIT_MS) == 0);
    CHECK(peerlane_comm_recv(job, 1, any, 6, PEERLANE_WHOLE_TAG, LIMIT_MS, &info) == 0);
    CHECK(info.source == 1 && info.tag == 6 && info.size_bytes == bytes && info.moved_bytes == bytes && info.error == 0);
    check_bytes(device, host, bytes, 0);
  } else {
    peerlane_op_t op = PEERLANE_OP_INIT;
    CHECK(peerlane_comm_irecv(job, PEERLANE_ANY_SOURCE, memory, 5, 0xff, &op) == 0);
    CHECK(!peerlane_op_is_empty(&op));
    CHECK(peerlane_op_wait(&op, LIMIT_MS, &info) == 0 && peerlane_op_is_empty(&op));
    CHECK(info.source == 0 && info.tag == 5 && info.size_bytes == bytes);
    check_bytes(device, host, bytes, 0);
    CHECK(peerlane_comm_send(job, 0, memory, 6, LIMIT_MS) == 0);
  }
  CHECK(cuMemFree_v2(device) == 0);
  free(host);
}

static int be_rank(int rank, int fd, const char* mode) {
  static const size_t sizes[] = {0, 1, 8, 4096, 40000, 3000000};
  struct peerlane_comm_options options;
  struct peerlane_bootstrap callbacks;
  struct pair pair;
  peerlane_comm_t job = NULL;
  void* context = NULL;
  char plan[4096];
  size_t i, needed = 0;
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
  memset(&options, 0, sizeof options);
  memset(&callbacks, 0, sizeof callbacks);
  options.struct_bytes = sizeof options;
  pair.fd = fd;
  pair.rank = rank;
  callbacks.context = &pair;
  callbacks.rank = rank;
  callbacks.size = 2;
  callbacks.all_gather = exchange;
  if (strcmp(mode, "callbacks") == 0) {
    options.bootstrap = &callbacks;
  } else {
    options.rendezvous = mode;
    options.rank = rank;
    options.size = 2;
  }
  CHECK(peerlane_comm_open(&options, &job) == 0);
  CHECK(peerlane_comm_rank(job) == rank && peerlane_comm_size(job) == 2);
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) pingpong(job, rank, sizes[i]);
  CHECK(peerlane_comm_plan(job, 1 - rank, plan, sizeof plan, &needed) == 0 && needed < sizeof plan);
  CHECK(strstr(plan, "same node") != NULL && strstr(plan, "CPUs ") != NULL);
  CHECK(peerlane_comm_barrier(job, LIMIT_MS) == 0);
  CHECK(peerlane_comm_close(job) == 0);
  CHECK(peerlane_comm_close(job) == EINVAL);
  return 0;
}

int main(int argc, char** argv) {
  int ends[2], rank, failed = 0;
  pid_t children[2];
  CHECK(argc == 2);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      close(ends[1 - rank]);
      alarm(60);
      return be_rank(rank, ends[rank], argv[1]);
    }
  }
  close(ends[0]);
  close(ends[1]);
  for (rank = 0; rank < 2; ++rank) {
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    if (status != 0) failed = 1;
  }
  return failed;
}
