/* SPDX-License-Identifier: Apache-2.0
 * Windows of device memory: each rank does the same to a window of device memory, through the preloaded library, and to one
 * of host memory, by MPI alone; then every byte of both must be the same. `windows_program [copied]`. */
#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

enum { kInts = kBytes / 4, kUnit = 4 };

/* The windows' memory is the second buffer, `output`, of mpi_program.h. */
static MPI_Win device_window, host_window;

static void open_windows(void) {
  CHECK(MPI_Win_create(device_out, kBytes, kUnit, MPI_INFO_NULL, WORLD, &device_window) == 0);
  CHECK(PMPI_Win_create(host_out, kBytes, kUnit, MPI_INFO_NULL, WORLD, &host_window) == 0);
}

/* Whether the windows are of the kind that this run is about, and say what the caller gave. */
static void attributes(int is_copied) {
  void* base = NULL;
  MPI_Aint* size = NULL;
  int *unit = NULL, *model = NULL, flag = 0;
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_BASE, &base, &flag) == 0 && flag && base == device_out);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_SIZE, &size, &flag) == 0 && flag && *size == kBytes);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_DISP_UNIT, &unit, &flag) == 0 && flag && *unit == kUnit);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_MODEL, &model, &flag) == 0 && flag);
  CHECK(*model == (is_copied ? MPI_WIN_SEPARATE : MPI_WIN_UNIFIED));
}

static void close_windows(void) {
  CHECK(MPI_Win_free(&device_window) == 0 && device_window == MPI_WIN_NULL);
  CHECK(PMPI_Win_free(&host_window) == 0);
}

/* Fresh data, of which the windows are told. */
static void begin_round(void) {
  MPI_Barrier(WORLD);
  reset();
  CHECK(MPI_Win_fence(0, device_window) == 0 && PMPI_Win_fence(0, host_window) == 0);
}

/* `...` names `input` and `window`. */
#define IN_FENCE(function, ...)                                                              \
  do {                                                                                       \
    begin_round();                                                                           \
    unsigned char* input = device_in;                                                        \
    MPI_Win window = device_window;                                                          \
    CHECK(MPI_##function(__VA_ARGS__) == 0);                                                 \
    input = host_in, window = host_window;                                                   \
    CHECK(PMPI_##function(__VA_ARGS__) == 0);                                                \
    CHECK(MPI_Win_fence(0, device_window) == 0 && PMPI_Win_fence(0, host_window) == 0);      \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__);                                       \
  } while (0)

static void fences(void) {
  for (int count = 0; count <= kInts / 2; count = count * 7 + 1) {
    IN_FENCE(Put, input, count, MPI_INT, next_rank, 3, count, MPI_INT, window);
    IN_FENCE(Put, input, count, MPI_INT, rank, 3, count, MPI_INT, window);
    IN_FENCE(Get, input, count, MPI_INT, next_rank, 5, count, MPI_INT, window);
    IN_FENCE(Get, input, count, MPI_INT, rank, 5, count, MPI_INT, window);
  }
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  open_windows();
  attributes(argc > 1);
  fences();
  close_windows();
  MPI_Finalize();
  return 0;
}
