/* SPDX-License-Identifier: Apache-2.0
 * Every flavour of message on device memory, beside the same one on host memory; then what is particular about requests. */
#include <dlfcn.h>

#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

typedef int (*send_function)(const void*, int, MPI_Datatype, int, int, MPI_Comm);
typedef int (*begin_function)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

/* Round the ring: MPI's receive takes what `send` sends. */
static void ring(send_function send, begin_function begin, begin_function init, int count) {
  MPI_Request requests[2];
  reset();
  CHECK(MPI_Irecv(device_out, count, MPI_INT, previous_rank, 3, WORLD, &requests[0]) == 0);
  MPI_Barrier(WORLD); /* ready sends want it */
  if (send != NULL) CHECK(send(device_in, count, MPI_INT, next_rank, 3, WORLD) == 0);
  if (begin != NULL) CHECK(begin(device_in, count, MPI_INT, next_rank, 3, WORLD, &requests[1]) == 0);
  if (init != NULL) {
    CHECK(init(device_in, count, MPI_INT, next_rank, 3, WORLD, &requests[1]) == 0);
    CHECK(MPI_Start(&requests[1]) == 0);
  }
  CHECK(MPI_Waitall(send != NULL ? 1 : 2, requests, MPI_STATUSES_IGNORE) == 0);
  if (init != NULL) CHECK(requests[1] != MPI_REQUEST_NULL && MPI_Request_free(&requests[1]) == 0);
  CHECK(PMPI_Sendrecv(host_in, count, MPI_INT, next_rank, 3, host_out, count, MPI_INT, previous_rank, 3, WORLD, IGNORE) ==
        0);
  compare("ring", __LINE__);
}

static void flavours(void) {
  static char attached[1 << 20];
  void* detached;
  int bytes;
  MPI_Buffer_attach(attached, sizeof attached);
  for (int count = 0; count <= 8000; count = count * 9 + 1) {
    const send_function send[] = {MPI_Bsend, MPI_Rsend};
    for (int i = 0; i < 2; ++i) ring(send[i], NULL, NULL, count);
    const begin_function begin[] = {MPI_Isend, MPI_Issend, MPI_Ibsend, MPI_Irsend};
    for (int i = 0; i < 4; ++i) ring(NULL, begin[i], NULL, count);
    const begin_function init[] = {MPI_Send_init, MPI_Ssend_init, MPI_Bsend_init, MPI_Rsend_init};
    for (int i = 0; i < 4; ++i) ring(NULL, NULL, init[i], count);
    ring(MPI_Send, NULL, NULL, count);
    ring(MPI_Ssend, NULL, NULL, count);
    BOTH(Sendrecv, input, count, MPI_INT, next_rank, 4, output, count, MPI_INT, previous_rank, 4, WORLD, IGNORE);
    BOTH(Sendrecv_replace, input, count, MPI_INT, next_rank, 4, previous_rank, 4, WORLD, IGNORE);
  }
  MPI_Buffer_detach(&detached, &bytes);
}

/* One side on the device, the other on the host. */
static void mixed_sides(void) {
  reset();
  CHECK(MPI_Sendrecv(device_in, 100, MPI_INT, next_rank, 1, host_out, 100, MPI_INT, previous_rank, 1, WORLD, IGNORE) == 0);
  CHECK(MPI_Sendrecv(host_in, 100, MPI_INT, next_rank, 1, device_out, 100, MPI_INT, previous_rank, 1, WORLD, IGNORE) == 0);
  compare("mixed sides", __LINE__);
}

/* Both GPUs in one process, and no context current at the call. */
static void two_gpus(void) {
  enum { kSome = 3000 };
  void* context = NULL;
  CHECK(cuDevicePrimaryCtxRetain(&context, 1 - rank % 2) == 0 && cuCtxSetCurrent(context) == 0);
  unsigned char* const other = device_bytes(kSome);
  reset();
  CHECK(cuCtxSetCurrent(NULL) == 0);
  CHECK(MPI_Sendrecv(device_in, kSome, MPI_BYTE, next_rank, 1, other, kSome, MPI_BYTE, previous_rank, 1, WORLD, IGNORE) ==
        0);
  CHECK(MPI_Sendrecv(other, kSome, MPI_BYTE, previous_rank, 1, device_out, kSome, MPI_BYTE, next_rank, 1, WORLD, IGNORE) ==
        0);
  memcpy(host_out, host_in, kSome); /* there and back */
  begin_gpu();
  compare("two GPUs", __LINE__);
}

static void types(void) {
  const int lengths[] = {3, 1, 4}, places[] = {9, 0, 4}, numbers[] = {6, 8}, part[] = {3, 2}, starts[] = {1, 5};
  const MPI_Aint bytes_at[] = {100, 3, 40};
  const MPI_Datatype fields[] = {MPI_INT, MPI_CHAR, MPI_SHORT_INT};
  MPI_Datatype made[10];
  int n = 0;
  MPI_Type_vector(20, 2, 5, MPI_INT, &made[n++]);
  MPI_Type_create_hvector(4, 1, 1000, made[0], &made[n++]);
  MPI_Type_indexed(3, lengths, places, MPI_INT, &made[n++]);
  MPI_Type_create_hindexed(3, lengths, bytes_at, MPI_CHAR, &made[n++]);
  MPI_Type_create_indexed_block(3, 2, places, MPI_SHORT, &made[n++]);
  MPI_Type_create_struct(3, lengths, bytes_at, fields, &made[n++]);
  MPI_Type_create_subarray(2, numbers, part, starts, MPI_ORDER_C, MPI_INT, &made[n++]);
  MPI_Type_create_subarray(2, numbers, part, starts, MPI_ORDER_FORTRAN, MPI_INT, &made[n++]);
  MPI_Type_create_resized(made[2], -8, 200, &made[n++]);
  MPI_Type_dup(MPI_SHORT_INT, &made[n++]);
  for (int i = 0; i < n; ++i) {
    MPI_Type_commit(&made[i]);
    for (int count = 0; count < 4; ++count) {
      BOTH(Sendrecv, input, count, made[i], next_rank, 5, output, count, made[i], previous_rank, 5, WORLD, IGNORE);
      int size = 0, position = 7, back = 7;
      MPI_Pack_size(count, made[i], WORLD, &size);
      BOTH(Sendrecv, input, size, MPI_BYTE, next_rank, 5, output, count + 3, made[i], previous_rank, 5, WORLD, IGNORE);
      BOTH(Sendrecv_replace, input, count, made[i], next_rank, 5, previous_rank, 5, WORLD, IGNORE);
      BOTH(Pack, input, count, made[i], output, size + 7, (position = 7, &position), WORLD);
      CHECK(position == 7 + size);
      BOTH(Unpack, input, size + 7, (back = 7, &back), output, count, made[i], WORLD);
      CHECK(back == position);
    }
  }
  /* Backwards, so in the type map the last address comes first. */
  MPI_Datatype backwards;
  MPI_Type_vector(10, 2, -5, MPI_INT, &backwards);
  MPI_Type_commit(&backwards);
  for (int sent = 0; sent <= 20; sent += 3)
    BOTH(Sendrecv, input, sent, MPI_INT, next_rank, 6, output + 400, 1, backwards, previous_rank, 6, WORLD, IGNORE);
  MPI_Type_free(&backwards);
  for (int i = 0; i < n; ++i) MPI_Type_free(&made[i]);
}

static void short_receives(void) {
  MPI_Datatype rows;
  MPI_Type_vector(5, 3, 4, MPI_INT, &rows);
  MPI_Type_commit(&rows);
  for (int sent = 0; sent <= 30; ++sent) {
    MPI_Status status;
    int got = 0;
    BOTH(Sendrecv, input, sent, MPI_INT, next_rank, 6, output, 500, MPI_INT, previous_rank, 6, WORLD, &status);
    CHECK(MPI_Get_count(&status, MPI_INT, &got) == 0 && got == sent);
    BOTH(Sendrecv, input, sent, MPI_INT, next_rank, 6, output, 2, rows, previous_rank, 6, WORLD, &status);
    CHECK(MPI_Get_elements(&status, rows, &got) == 0 && got == sent);
  }
  MPI_Type_free(&rows);
}

/* Two receives into columns of one matrix: neither may undo the other, in whichever order they end. */
static void interleaved_columns(void) {
  MPI_Datatype column;
  MPI_Request requests[4];
  MPI_Type_vector(32, 1, 8, MPI_INT, &column);
  MPI_Type_commit(&column);
  for (int device = 1; device >= 0; --device) {
    if (device) reset();
    int* const source = (int*)(device ? device_in : host_in);
    int* const target = (int*)(device ? device_out : host_out);
    for (int i = 0; i < 2; ++i) {
      CHECK(MPI_Irecv(target + 7 * i, 1, column, previous_rank, i, WORLD, &requests[i]) == 0);
      CHECK(MPI_Isend(source + 2 * i, 1, column, next_rank, i, WORLD, &requests[2 + i]) == 0);
    }
    CHECK(MPI_Wait(&requests[1], IGNORE) == 0 && MPI_Waitall(4, requests, MPI_STATUSES_IGNORE) == 0);
  }
  compare("columns", __LINE__);
  MPI_Type_free(&column);
}

static void probed(void) {
  MPI_Message message;
  MPI_Status status;
  MPI_Request request[3];
  reset();
  CHECK(MPI_Isend(device_in, 10, MPI_INT, next_rank, 8, WORLD, &request[0]) == 0);
  CHECK(MPI_Isend(device_in, 20, MPI_INT, next_rank, 9, WORLD, &request[1]) == 0);
  CHECK(MPI_Mprobe(MPI_ANY_SOURCE, 8, WORLD, &message, &status) == 0);
  CHECK(MPI_Mrecv(device_out, 100, MPI_INT, &message, &status) == 0 && status.MPI_SOURCE == previous_rank);
  CHECK(MPI_Mprobe(previous_rank, 9, WORLD, &message, &status) == 0);
  CHECK(MPI_Imrecv(device_out + 64, 100, MPI_INT, &message, &request[2]) == 0);
  CHECK(MPI_Waitall(3, request, MPI_STATUSES_IGNORE) == 0);
  PMPI_Sendrecv(host_in, 10, MPI_INT, next_rank, 8, host_out, 10, MPI_INT, previous_rank, 8, WORLD, IGNORE);
  PMPI_Sendrecv(host_in, 20, MPI_INT, next_rank, 8, host_out + 64, 20, MPI_INT, previous_rank, 8, WORLD, IGNORE);
  compare("probed", __LINE__);
}

static void nobody(void) {
  MPI_Status status;
  int got = 1;
  BOTH(Recv, output, 10, MPI_INT, MPI_PROC_NULL, 0, WORLD, &status);
  CHECK(MPI_Get_count(&status, MPI_INT, &got) == 0 && got == 0 && status.MPI_SOURCE == MPI_PROC_NULL);
  BOTH(Send, input, 10, MPI_INT, MPI_PROC_NULL, 0, WORLD);
  CHECK(MPI_Send(NULL, 0, MPI_INT, MPI_PROC_NULL, 0, WORLD) == 0);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  int (*const query)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
  CHECK(query != NULL && query() == 1);
  flavours();
  mixed_sides();
  two_gpus();
  types();
  short_receives();
  interleaved_columns();
  probed();
  nobody();
  MPI_Finalize();
  return 0;
}
