/* SPDX-License-Identifier: Apache-2.0
 * The bookkeeping of requests: every way to complete, cancel, free and repeat them. */
#include <unistd.h>

#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

enum { kMessages = 24, kInts = 40 };

static int* slot(unsigned char* buffer, int i) { return (int*)buffer + i * 64; }

/* Sends and receives on the device, the odd ones on the host, and null requests between them. */
static void begin_many(MPI_Request* list) {
  reset();
  for (int i = 0; i < kMessages; ++i) {
    unsigned char* const target = i % 4 == 3 ? host_out : device_out;
    CHECK(MPI_Irecv(slot(target, i), 64, MPI_INT, MPI_ANY_SOURCE, i, WORLD, &list[i]) == 0);
  }
  list[kMessages] = MPI_REQUEST_NULL;
  for (int i = kMessages - 1; i >= 0; --i)
    CHECK(MPI_Isend(slot(device_in, i), kInts, MPI_INT, next_rank, i, WORLD, &list[kMessages + 1 + i]) == 0);
}

static void compare_many(const char* description) {
  for (int i = 0; i < kMessages; ++i)
    PMPI_Sendrecv(slot(host_in, i), kInts, MPI_INT, next_rank, 99, slot(host_out, i), kInts, MPI_INT, previous_rank, 99,
                  WORLD, IGNORE);
  for (int i = 3; i < kMessages; i += 4) to_device(slot(device_out, i), slot(host_out, i), 256);
  compare(description, __LINE__);
}

static void every_completion(void) {
  enum { kAll = 2 * kMessages + 1 };
  MPI_Request list[kAll];
  MPI_Status status[kAll];
  int index, flag, some, indices[kAll];
  begin_many(list);
  for (int left = 2 * kMessages; left > 0; --left) {
    CHECK(MPI_Waitany(kAll, list, &index, status) == 0 && index != MPI_UNDEFINED && list[index] == MPI_REQUEST_NULL);
    if (index < kMessages) CHECK(status[0].MPI_TAG == index && status[0].MPI_SOURCE == previous_rank);
  }
  CHECK(MPI_Waitany(kAll, list, &index, IGNORE) == 0 && index == MPI_UNDEFINED);
  compare_many("Waitany");
  begin_many(list);
  for (int left = 2 * kMessages; left > 0; left -= flag != 0) CHECK(MPI_Testany(kAll, list, &index, &flag, IGNORE) == 0);
  compare_many("Testany");
  begin_many(list);
  for (int left = 2 * kMessages; left > 0; left -= some) CHECK(MPI_Waitsome(kAll, list, &some, indices, status) == 0);
  compare_many("Waitsome");
  begin_many(list);
  for (int left = 2 * kMessages; left > 0; left -= some)
    CHECK(MPI_Testsome(kAll, list, &some, indices, MPI_STATUSES_IGNORE) == 0);
  compare_many("Testsome");
  begin_many(list);
  do CHECK(MPI_Testall(kAll, list, &flag, status) == 0);
  while (!flag);
  compare_many("Testall");
  begin_many(list);
  CHECK(MPI_Waitall(kAll, list, MPI_STATUSES_IGNORE) == 0);
  compare_many("Waitall");
  begin_many(list);
  for (int i = 0; i < kAll; ++i) do
      CHECK(MPI_Test(&list[i], &flag, IGNORE) == 0);
    while (!flag);
  compare_many("Test");
}

static void persistent(void) {
  MPI_Request list[2];
  CHECK(MPI_Recv_init(device_out, 500, MPI_INT, previous_rank, 1, WORLD, &list[0]) == 0);
  CHECK(MPI_Send_init(device_in, 400, MPI_INT, next_rank, 1, WORLD, &list[1]) == 0);
  CHECK(MPI_Waitall(2, list, MPI_STATUSES_IGNORE) == 0); /* inactive: nothing happens */
  for (int round = 0; round < 4; ++round) {
    reset();
    CHECK(MPI_Startall(2, list) == 0);
    if (round % 2) CHECK(MPI_Wait(&list[0], IGNORE) == 0);
    CHECK(MPI_Waitall(2, list, MPI_STATUSES_IGNORE) == 0 && list[0] != MPI_REQUEST_NULL);
    PMPI_Sendrecv(host_in, 400, MPI_INT, next_rank, 99, host_out, 400, MPI_INT, previous_rank, 99, WORLD, IGNORE);
    compare("persistent", __LINE__);
    /* What the program writes between two rounds stays. */
    to_device(device_out, host_in, 64);
    CHECK(MPI_Wait(&list[0], IGNORE) == 0);
    memcpy(host_out, host_in, 64);
    compare("inactive", __LINE__);
  }
  for (int i = 0; i < 2; ++i) CHECK(MPI_Request_free(&list[i]) == 0 && list[i] == MPI_REQUEST_NULL);
}

static void cancelled(void) {
  MPI_Request request;
  MPI_Status status;
  int flag = 0;
  reset();
  CHECK(MPI_Irecv(device_out, 100, MPI_INT, previous_rank, 77, WORLD, &request) == 0);
  CHECK(MPI_Cancel(&request) == 0 && MPI_Wait(&request, &status) == 0);
  CHECK(MPI_Test_cancelled(&status, &flag) == 0 && flag);
  compare("cancelled", __LINE__);
}

/* Freed while active: the message arrives all the same, and what was received is there soon. */
static void freed(void) {
  MPI_Request send, receive;
  reset();
  CHECK(MPI_Irecv(device_out, 6000, MPI_INT, previous_rank, 5, WORLD, &receive) == 0);
  CHECK(MPI_Request_free(&receive) == 0 && receive == MPI_REQUEST_NULL);
  CHECK(MPI_Isend(device_in, 6000, MPI_INT, next_rank, 5, WORLD, &send) == 0);
  CHECK(MPI_Request_free(&send) == 0);
  PMPI_Sendrecv(host_in, 6000, MPI_INT, next_rank, 99, host_out, 6000, MPI_INT, previous_rank, 99, WORLD, IGNORE);
  for (int i = 0; i < 200; ++i) {
    int flag = 0;
    MPI_Request none = MPI_REQUEST_NULL;
    CHECK(MPI_Test(&none, &flag, IGNORE) == 0);
    usleep(500);
  }
  compare("freed", __LINE__);
}

static void check_queries(void) {
  MPI_Request request;
  MPI_Status status;
  int flag = 0, got = 0;
  reset();
  CHECK(MPI_Irecv(device_out, 100, MPI_INT, previous_rank, 6, WORLD, &request) == 0);
  CHECK(MPI_Send(device_in, 60, MPI_INT, next_rank, 6, WORLD) == 0);
  while (!flag) CHECK(MPI_Request_get_status(request, &flag, &status) == 0);
  CHECK(MPI_Get_count(&status, MPI_INT, &got) == 0 && got == 60);
  PMPI_Sendrecv(host_in, 60, MPI_INT, next_rank, 99, host_out, 60, MPI_INT, previous_rank, 99, WORLD, IGNORE);
  compare("looked at", __LINE__);
  memcpy(host_out, host_in, 8);
  to_device(device_out, host_in, 8);
  CHECK(MPI_Wait(&request, IGNORE) == 0);
  compare("looked at, then waited for", __LINE__);
}

static int class_of(int code) {
  int class = -1;
  MPI_Error_class(code, &class);
  return class;
}

/* The same error as with host memory, and through the communicator's own handler: that of the world would end the program.
 */
#define SAME_ERROR(function, ...)                            \
  do {                                                       \
    unsigned char *input = device_in, *output = device_out;  \
    (void)input, (void)output;                               \
    const int class = class_of(MPI_##function(__VA_ARGS__)); \
    input = host_in, output = host_out;                      \
    CHECK(class != MPI_SUCCESS && class != MPI_ERR_BUFFER);  \
    CHECK(class == class_of(PMPI_##function(__VA_ARGS__)));  \
  } while (0)

static void wrong_arguments(void) {
  const int counts[8] = {1, 1, 1, 1, 1, 1, 1, 1}, places[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  MPI_Comm comm;
  MPI_Request request;
  CHECK(ranks <= 8 && MPI_Comm_dup(WORLD, &comm) == 0 && MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN) == 0);
  SAME_ERROR(Send, input, 1, MPI_DATATYPE_NULL, next_rank, 7, comm);
  SAME_ERROR(Isend, input, 1, MPI_DATATYPE_NULL, next_rank, 7, comm, &request);
  SAME_ERROR(Send_init, input, 1, MPI_DATATYPE_NULL, next_rank, 7, comm, &request);
  SAME_ERROR(Recv, output, 1, MPI_DATATYPE_NULL, next_rank, 7, comm, IGNORE);
  SAME_ERROR(Irecv, output, 1, MPI_DATATYPE_NULL, next_rank, 7, comm, &request);
  SAME_ERROR(Sendrecv, input, 1, MPI_INT, next_rank, 7, output, 1, MPI_DATATYPE_NULL, previous_rank, 7, comm, IGNORE);
  SAME_ERROR(Sendrecv_replace, output, 1, MPI_DATATYPE_NULL, next_rank, 7, previous_rank, 7, comm, IGNORE);
  SAME_ERROR(Bcast, output, 1, MPI_DATATYPE_NULL, 0, comm);
  SAME_ERROR(Bcast, output, -1, MPI_INT, 0, comm);
  SAME_ERROR(Bcast, output, 1, MPI_INT, ranks, comm);
  SAME_ERROR(Allreduce, input, output, 1, MPI_DATATYPE_NULL, MPI_SUM, comm);
  SAME_ERROR(Allreduce, input, output, 1, MPI_INT, MPI_OP_NULL, comm);
  SAME_ERROR(Allgather, input, 1, MPI_INT, output, 1, MPI_DATATYPE_NULL, comm);
  SAME_ERROR(Allgatherv, input, 1, MPI_INT, output, counts, places, MPI_DATATYPE_NULL, comm);
  SAME_ERROR(Alltoallv, input, counts, places, MPI_DATATYPE_NULL, output, counts, places, MPI_INT, comm);
  SAME_ERROR(Reduce_scatter, input, output, counts, MPI_DATATYPE_NULL, MPI_SUM, comm);
  SAME_ERROR(Send, input, -1, MPI_INT, next_rank, 7, comm);
  SAME_ERROR(Send, input, 1, MPI_INT, ranks, 7, comm);
  CHECK(MPI_Comm_free(&comm) == 0);
}

/* MPI's errors come through unchanged; ours are MPI_ERR_BUFFER. */
static void errors(void) {
  MPI_Status status;
  MPI_Win window;
  int class = 0;
  MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_RETURN);
  CHECK(MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &window) == 0);
  CHECK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN) == 0);
  /* More than its allocation. */
  CHECK(MPI_Win_attach(window, device_in, (MPI_Aint)1 << 40) == MPI_ERR_BUFFER);
  CHECK(MPI_Win_free(&window) == 0);
  reset();
  MPI_Request request;
  CHECK(MPI_Isend(device_in, 100, MPI_INT, next_rank, 7, WORLD, &request) == 0);
  const int code = MPI_Recv(device_out, 10, MPI_INT, previous_rank, 7, WORLD, &status);
  CHECK(code != 0 && MPI_Error_class(code, &class) == 0 && class == MPI_ERR_TRUNCATE);
  CHECK(MPI_Wait(&request, IGNORE) == 0);
  /* Memory outside its allocation. */
  CHECK(MPI_Send(device_in + kBytes - 4, 1 << 20, MPI_INT, next_rank, 7, WORLD) == MPI_ERR_BUFFER);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  every_completion();
  persistent();
  cancelled();
  freed();
  check_queries();
  wrong_arguments();
  errors();
  MPI_Barrier(WORLD);
  MPI_Finalize();
  return 0;
}
