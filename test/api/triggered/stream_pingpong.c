/* SPDX-License-Identifier: Apache-2.0
 * A program of somebody else's in plain C, on the public headers alone: the streams of two processes send each other's GPU
 * what the other put there, round after round, and the CPUs look at the end only. The argument is a folder in which they
 * meet. Exit code 0: every byte and every count was right. */
#include <errno.h>
#include <peerlane/triggered.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/api/triggered/driver.h"

#define BYTES 4096u
#if defined(__SANITIZE_THREAD__)
#define ROUNDS 10u /* a kernel's threads are slow there */
#else
#define ROUNDS 50u
#endif
#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, peerlane_last_error()); \
      exit(1);                                                                                              \
    }                                                                                                       \
  } while (0)

/* The byte travels from rank 0 to rank 1 and back in every round, through both windows. */
static void play(peerlane_triggered_t job, int rank, void* stream) {
  struct peerlane_triggered_key mine, keys[2];
  struct peerlane_channel_options options;
  struct peerlane_channel_state state;
  peerlane_exposed_t window = 0;
  peerlane_remote_t remote = 0;
  peerlane_channel_t channel = 0;
  unsigned long long device = 0;
  unsigned char host[BYTES];
  uint64_t sequence = 0, waited = 0;
  unsigned i;
  char text[4096];
  size_t needed = 0;
  int has_arrived = -1;
  CHECK(cuMemAlloc_v2(&device, BYTES) == 0);
  for (i = 0; i < BYTES; ++i) host[i] = (unsigned char)(rank == 0 ? i * 5 + 3 : 0);
  CHECK(cuMemcpyHtoD_v2(device, host, BYTES) == 0);
  CHECK(peerlane_triggered_expose(job, peerlane_device_buffer(device, BYTES), &window, &mine) == 0);
  CHECK(peerlane_triggered_all_gather(job, &mine, sizeof mine, keys) == 0);
  CHECK(peerlane_triggered_import(job, &keys[1 - rank], &remote) == 0);
  memset(&options, 0, sizeof options);
  options.struct_bytes = sizeof options;
  CHECK(peerlane_channel_connect(job, 1 - rank, 3, &options, &channel) == 0);
  CHECK(peerlane_channel_ready(job, channel, 20000) == 0);
  for (i = 1; i <= ROUNDS; ++i) {
    if (rank == 1) CHECK(peerlane_channel_wait_signal(job, channel, stream, 0, &waited) == 0 && waited == i);
    CHECK(peerlane_channel_put_signal(job, channel, stream, remote, 0, peerlane_device_buffer(device, BYTES), &sequence) ==
              0 &&
          sequence == i);
    if (rank == 0) CHECK(peerlane_channel_wait_signal(job, channel, stream, 0, NULL) == 0);
  }
  CHECK(peerlane_channel_host_wait(job, channel, ROUNDS, 20000) == 0);
  CHECK(cuStreamSynchronize(stream) == 0);
  memset(host, 0, sizeof host);
  CHECK(cuMemcpyDtoH_v2(host, device, BYTES) == 0);
  for (i = 0; i < BYTES; ++i) CHECK(host[i] == (unsigned char)(i * 5 + 3));
  state.struct_bytes = sizeof state;
  CHECK(peerlane_channel_get_state(job, channel, &state) == 0);
  CHECK(state.error == 0 && state.puts == ROUNDS && state.sent == ROUNDS && state.waits == ROUNDS);
  CHECK(peerlane_channel_arrived(job, channel, ROUNDS, &has_arrived) == 0 && has_arrived == 1);
  CHECK(peerlane_channel_arrived(job, channel, ROUNDS + 1, &has_arrived) == 0 && has_arrived == 0);
  CHECK(peerlane_channel_diag(job, channel, text, sizeof text, &needed) == 0 && strstr(text, "0 puts queued") != NULL);
  CHECK(peerlane_triggered_all_gather(job, NULL, 0, NULL) == 0);
  CHECK(peerlane_channel_close(job, channel) == 0 && peerlane_channel_close(job, channel) == EINVAL);
  CHECK(peerlane_triggered_release_window(job, window) == 0 && peerlane_triggered_release_window(job, window) == EINVAL);
  CHECK(peerlane_triggered_release_remote(job, remote) == 0 && peerlane_triggered_release_remote(job, remote) == EINVAL);
}

static int be_rank(int rank, const char* folder) {
  struct peerlane_comm_options comm;
  struct peerlane_triggered_options options;
  struct peerlane_triggered_capabilities capabilities;
  peerlane_triggered_t job = NULL;
  void *context = NULL, *stream = NULL;
  char text[512];
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
  CHECK(cuStreamCreate(&stream, 1) == 0);
  memset(&comm, 0, sizeof comm);
  memset(&options, 0, sizeof options);
  snprintf(text, sizeof text, "file:%s", folder);
  comm.struct_bytes = sizeof comm;
  comm.rendezvous = text;
  comm.rank = rank;
  comm.size = 2;
  options.struct_bytes = sizeof options;
  options.comm = &comm;
  options.mode = PEERLANE_TRIGGERED_ECONOMY;
  CHECK(peerlane_triggered_open(&options, &job) == 0);
  CHECK(peerlane_triggered_rank(job) == rank && peerlane_triggered_size(job) == 2);
  capabilities.struct_bytes = sizeof capabilities;
  CHECK(peerlane_triggered_query(job, &capabilities) == 0 && capabilities.device == rank);
  play(job, rank, stream);
  CHECK(peerlane_triggered_all_gather(job, NULL, 0, NULL) == 0);
  CHECK(peerlane_triggered_close(job) == 0);
  CHECK(peerlane_triggered_close(job) == EINVAL);
  CHECK(cuStreamDestroy_v2(stream) == 0);
  return 0;
}

int main(int argc, char** argv) {
  pid_t children[2];
  int rank, failed = 0;
  CHECK(argc == 2);
  for (rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      alarm(60);
      return be_rank(rank, argv[1]);
    }
  }
  for (rank = 0; rank < 2; ++rank) {
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    if (status != 0) failed = 1;
  }
  return failed;
}
