/* SPDX-License-Identifier: Apache-2.0
 * Windows of device memory: each rank does the same to a window of device memory, through the preloaded library, and to one
 * of host memory, by MPI alone; then every byte of both must be the same. Also with host memory on one of the two sides.
 * `windows_program [copied]`: as if no rank could map another's memory. */
#include <unistd.h>

#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

enum { kUnit = 4, kHalf = kBytes / 2 };
enum epoch { by_fence, by_post, by_post_and_test, by_lock, by_exclusive_lock, by_lock_all, epochs };

/* A window's memory is the second buffer of mpi_program.h, or stands for it. */
static MPI_Win device_window, host_window;
static unsigned char *window_memory, *origin_memory;
static MPI_Group everyone;
static int is_copied;

#define ON_BOTH(function, ...) \
  CHECK(MPI_##function(__VA_ARGS__, device_window) == 0 && PMPI_##function(__VA_ARGS__, host_window) == 0)
#define BOTH_WINDOWS(function) CHECK(MPI_##function(device_window) == 0 && PMPI_##function(host_window) == 0)

static void open_windows(void) {
  CHECK(MPI_Win_create(window_memory, kBytes, kUnit, MPI_INFO_NULL, WORLD, &device_window) == 0);
  CHECK(PMPI_Win_create(host_out, kBytes, kUnit, MPI_INFO_NULL, WORLD, &host_window) == 0);
}

static void close_windows(void) {
  CHECK(MPI_Win_free(&device_window) == 0 && device_window == MPI_WIN_NULL);
  CHECK(PMPI_Win_free(&host_window) == 0);
}

/* Whether the windows are of the kind that this run is about, and say what the caller gave. */
static void attributes(void) {
  void* base = NULL;
  MPI_Aint* size = NULL;
  int *unit = NULL, *model = NULL, flag = 0;
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_BASE, &base, &flag) == 0 && flag && base == window_memory);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_SIZE, &size, &flag) == 0 && flag && *size == kBytes);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_DISP_UNIT, &unit, &flag) == 0 && flag && *unit == kUnit);
  CHECK(MPI_Win_get_attr(device_window, MPI_WIN_MODEL, &model, &flag) == 0 && flag);
  CHECK(*model == (is_copied ? MPI_WIN_SEPARATE : MPI_WIN_UNIFIED));
}

static void begin_epoch(enum epoch kind) {
  MPI_Barrier(WORLD);
  reset();
  if (window_memory != device_out) memcpy(window_memory, host_out, kBytes);
  if (origin_memory != device_in) memcpy(origin_memory, host_in, kBytes);
  ON_BOTH(Win_fence, kind == by_fence ? 0 : MPI_MODE_NOSUCCEED);
  MPI_Barrier(WORLD);
  if (kind == by_post || kind == by_post_and_test) {
    ON_BOTH(Win_post, everyone, 0);
    ON_BOTH(Win_start, everyone, 0);
  }
  const int lock = kind == by_lock ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE;
  if (kind == by_lock || kind == by_exclusive_lock) ON_BOTH(Win_lock, lock, next_rank, 0);
  if (kind == by_lock_all) ON_BOTH(Win_lock_all, 0);
}

static void end_epoch(enum epoch kind) {
  if (kind == by_fence) ON_BOTH(Win_fence, MPI_MODE_NOSUCCEED);
  if (kind == by_post || kind == by_post_and_test) BOTH_WINDOWS(Win_complete);
  if (kind == by_post) BOTH_WINDOWS(Win_wait);
  if (kind == by_post_and_test) {
    for (int flag = 0; !flag;) CHECK(MPI_Win_test(device_window, &flag) == 0);
    for (int flag = 0; !flag;) CHECK(PMPI_Win_test(host_window, &flag) == 0);
  }
  if (kind == by_lock || kind == by_exclusive_lock) {
    if (kind == by_lock) ON_BOTH(Win_flush_local, next_rank);
    ON_BOTH(Win_unlock, next_rank);
  }
  if (kind == by_lock_all) {
    if (round_number % 2) BOTH_WINDOWS(Win_flush_all);
    else BOTH_WINDOWS(Win_flush_local_all);
    BOTH_WINDOWS(Win_unlock_all);
  }
  MPI_Barrier(WORLD);
  if (kind == by_lock || kind == by_exclusive_lock || kind == by_lock_all) { /* the owner looks at its memory */
    ON_BOTH(Win_lock, MPI_LOCK_SHARED, rank, 0);
    BOTH_WINDOWS(Win_sync);
    ON_BOTH(Win_unlock, rank);
  }
  MPI_Barrier(WORLD);
  if (window_memory != device_out) to_device(device_out, window_memory, kBytes);
  if (origin_memory != device_in) to_device(device_in, origin_memory, kBytes);
}

/* `...` names `input` and `window`. */
#define IN_EPOCH(function, ...)                        \
  do {                                                 \
    begin_epoch(kind);                                 \
    unsigned char* input = origin_memory;              \
    MPI_Win window = device_window;                    \
    CHECK(MPI_##function(__VA_ARGS__) == 0);           \
    input = host_in, window = host_window;             \
    CHECK(PMPI_##function(__VA_ARGS__) == 0);          \
    end_epoch(kind);                                   \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__); \
  } while (0)

/* Those with a request, which must be `&request`. */
#define IN_EPOCH_LATER(function, ...)                                        \
  do {                                                                       \
    MPI_Request request;                                                     \
    begin_epoch(kind);                                                       \
    unsigned char* input = origin_memory;                                    \
    MPI_Win window = device_window;                                          \
    CHECK(MPI_##function(__VA_ARGS__) == 0);                                 \
    if (round_number % 3 == 0) CHECK(MPI_Win_flush(next_rank, window) == 0); \
    CHECK(MPI_Wait(&request, IGNORE) == 0);                                  \
    CHECK(request == MPI_REQUEST_NULL);                                      \
    input = host_in, window = host_window;                                   \
    CHECK(PMPI_##function(__VA_ARGS__) == 0);                                \
    CHECK(PMPI_Wait(&request, IGNORE) == 0);                                 \
    end_epoch(kind);                                                         \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__);                       \
  } while (0)

static void puts_and_gets(enum epoch kind, MPI_Datatype rows, MPI_Datatype some) {
  for (int count = 0; count <= kHalf / 4; count = count * 13 + 1) {
    IN_EPOCH(Put, input, count, MPI_INT, next_rank, 3, count, MPI_INT, window);
    IN_EPOCH(Get, input, count, MPI_INT, next_rank, 5, count, MPI_INT, window);
  }
  IN_EPOCH(Put, input, 2, rows, next_rank, 100, 2, rows, window);
  IN_EPOCH(Put, input + 4, 40, MPI_INT, next_rank, 100, 1, rows, window);
  IN_EPOCH(Put, input, 1, rows, next_rank, 7, 40, MPI_INT, window);
  IN_EPOCH(Put, input, 3, some, next_rank, 0, 18, MPI_INT, window);
  IN_EPOCH(Get, input, 2, rows, next_rank, 100, 2, rows, window);
  IN_EPOCH(Get, input, 18, MPI_INT, next_rank, 9, 3, some, window);
  IN_EPOCH(Get, input, 40, MPI_INT, next_rank, 100, 1, rows, window);
  IN_EPOCH(Get, input, 6, some, next_rank, 100, 36, MPI_INT, window);
#if MPI_VERSION >= 4
  IN_EPOCH(Put_c, input, 500, MPI_INT, next_rank, 3, 500, MPI_INT, window);
  IN_EPOCH(Get_c, input, 500, MPI_INT, next_rank, 3, 500, MPI_INT, window);
#endif
}

static void accumulates(enum epoch kind, MPI_Datatype rows, MPI_Datatype some) {
  enum { kOld = kHalf };
  IN_EPOCH(Accumulate, input, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_SUM, window);
  IN_EPOCH(Accumulate, input, 300, MPI_LONG_LONG, next_rank, 4, 300, MPI_LONG_LONG, MPI_MAX, window);
  IN_EPOCH(Accumulate, input, 900, MPI_BYTE, next_rank, 4, 900, MPI_BYTE, MPI_BXOR, window);
  IN_EPOCH(Accumulate, input, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_REPLACE, window);
  IN_EPOCH(Accumulate, input, 2, rows, next_rank, 100, 2, rows, MPI_SUM, window);
  IN_EPOCH(Accumulate, input, 40, MPI_INT, next_rank, 100, 1, rows, MPI_PROD, window);
  IN_EPOCH(Accumulate, input, 3, some, next_rank, 1, 18, MPI_INT, MPI_BAND, window);
  IN_EPOCH(Accumulate, input, 30, MPI_2INT, next_rank, 2, 30, MPI_2INT, MPI_MINLOC, window);
  IN_EPOCH(Get_accumulate, input, 700, MPI_INT, input + kOld, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_SUM, window);
  IN_EPOCH(Get_accumulate, input, 700, MPI_INT, input + kOld, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_REPLACE, window);
  IN_EPOCH(Get_accumulate, NULL, 0, MPI_INT, input + kOld, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_NO_OP, window);
  IN_EPOCH(Fetch_and_op, input, input + kOld, MPI_INT, next_rank, 3, MPI_SUM, window);
  IN_EPOCH(Fetch_and_op, input, input + kOld, MPI_LONG_LONG, next_rank, 4, MPI_NO_OP, window);
  IN_EPOCH(Fetch_and_op, input, input + kOld, MPI_LONG_LONG, next_rank, 4, MPI_REPLACE, window);
  IN_EPOCH(Compare_and_swap, input, input + 8, input + kOld, MPI_INT, next_rank, 3, window);
}

static void with_requests(enum epoch kind, MPI_Datatype rows) {
  enum { kOld = kHalf };
  IN_EPOCH_LATER(Rput, input, 700, MPI_INT, next_rank, 3, 700, MPI_INT, window, &request);
  IN_EPOCH_LATER(Rput, input, 2, rows, next_rank, 3, 2, rows, window, &request);
  IN_EPOCH_LATER(Rget, input, 700, MPI_INT, next_rank, 3, 700, MPI_INT, window, &request);
  IN_EPOCH_LATER(Rget, input, 2, rows, next_rank, 3, 2, rows, window, &request);
  IN_EPOCH_LATER(Rget, input, 2, rows, next_rank, 3, 2, rows, window, &request);
  IN_EPOCH_LATER(Raccumulate, input, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_SUM, window, &request);
  IN_EPOCH_LATER(Rget_accumulate, input, 700, MPI_INT, input + kOld, 700, MPI_INT, next_rank, 3, 700, MPI_INT, MPI_SUM,
                 window, &request);
}

/* By the CPU's own sums: Open MPI 4.1.4 mixes up the rows of such a call, of host memory too. */
static void old_rows(MPI_Datatype rows) {
  enum { kFirst = 3, kRows = 20, kRowInts = 2, kPitch = 5 };
  int* const in = (int*)(void*)host_in;
  int* const out = (int*)(void*)host_out;
  begin_epoch(by_fence);
  CHECK(MPI_Get_accumulate(origin_memory, 1, rows, origin_memory + kHalf, kRows * kRowInts, MPI_INT, rank, kFirst, 1, rows,
                           MPI_SUM, device_window) == 0);
  end_epoch(by_fence);
  for (int i = 0; i < kRows * kRowInts; ++i) {
    const int place = i / kRowInts * kPitch + i % kRowInts;
    in[kHalf / 4 + i] = out[kFirst + place];
    out[kFirst + place] = (int)((unsigned)out[kFirst + place] + (unsigned)in[place]);
  }
  compare("old rows", __LINE__);
}

/* What is at the target is what the swap looks for, on every second rank. */
static void swaps(enum epoch kind) {
  begin_epoch(kind);
  const int wanted[2] = {next_rank % 2 ? 1000 + next_rank : -1, 4711};
  int previous[2] = {0, 0};
  const int mine = 1000 + rank;
  (void)mine;
  end_epoch(kind);
  to_device(device_out + 64, &mine, 4);
  if (window_memory != device_out) memcpy(window_memory + 64, &mine, 4);
  ON_BOTH(Win_fence, 0);
  to_device(device_in, wanted, sizeof wanted);
  CHECK(MPI_Compare_and_swap(device_in + 4, device_in, device_in + 8, MPI_INT, next_rank, 64 / kUnit, device_window) == 0);
  ON_BOTH(Win_fence, MPI_MODE_NOSUCCEED);
  int now = 0;
  to_host(&previous, device_in + 8, 4);
  if (window_memory != device_out) to_device(device_out, window_memory, kBytes);
  to_host(&now, device_out + 64, 4);
  CHECK(previous[0] == 1000 + next_rank);
  CHECK(now == (rank % 2 ? 4711 : 1000 + rank));
}

/* All ranks at once on the words of rank 0: nothing is lost, and no value is given out twice. */
static void counters(void) {
  enum { kTurns = 60 };
  begin_epoch(by_lock_all);
  long long sums[3] = {0, 0, 0};
  end_epoch(by_lock_all);
  if (rank == 0) {
    to_device(device_out, sums, sizeof sums);
    if (window_memory != device_out) memcpy(window_memory, sums, sizeof sums);
  }
  ON_BOTH(Win_fence, MPI_MODE_NOSUCCEED);
  const long long values[2] = {1, 1};
  /* Open MPI 4.1.4 faults at a swap in memory of one's own. */
  const int swaps_at_home = rank != 0 || (!is_copied && window_memory == device_out);
  to_device(device_in, values, sizeof values);
  long long seen = 0;
  CHECK(MPI_Win_lock_all(0, device_window) == 0);
  for (int i = 0; i < kTurns; ++i) {
    long long previous = -1;
    CHECK(MPI_Accumulate(device_in, 1, MPI_LONG_LONG, 0, 0, 1, MPI_LONG_LONG, MPI_SUM, device_window) == 0);
    CHECK(MPI_Fetch_and_op(device_in, &previous, MPI_LONG_LONG, 0, 2, MPI_SUM, device_window) == 0);
    CHECK(MPI_Win_flush(0, device_window) == 0 && previous >= 0);
    seen += previous;
    for (long long expected = 0, found = -1;; expected = found) { /* adds one by swapping */
      const long long next = expected + 1;
      if (!swaps_at_home) break;
      CHECK(MPI_Compare_and_swap(&next, &expected, &found, MPI_LONG_LONG, 0, 4, device_window) == 0);
      CHECK(MPI_Win_flush(0, device_window) == 0);
      if (found == expected) break;
    }
  }
  CHECK(MPI_Win_unlock_all(device_window) == 0);
  MPI_Barrier(WORLD);
  CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, device_window) == 0);
  CHECK(MPI_Get(sums, 3, MPI_LONG_LONG, 0, 0, 3, MPI_LONG_LONG, device_window) == 0);
  CHECK(MPI_Win_unlock(0, device_window) == 0);
  const long long all = (long long)kTurns * ranks;
  CHECK(sums[0] == all && sums[1] == all);
  CHECK(sums[2] == (!is_copied && window_memory == device_out ? all : all - kTurns));
  PMPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_LONG_LONG, MPI_SUM, WORLD);
  CHECK(seen == all * (all - 1) / 2);
}

/* Under an exclusive lock, a read and a write are one. */
static void exclusion(void) {
  enum { kTurns = 30 };
  int value = 0;
  ON_BOTH(Win_fence, MPI_MODE_NOSUCCEED);
  if (rank == 0) {
    to_device(device_out, &value, 4);
    if (window_memory != device_out) memcpy(window_memory, &value, 4);
  }
  ON_BOTH(Win_fence, MPI_MODE_NOSUCCEED);
  for (int i = 0; i < kTurns; ++i) {
    CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, device_window) == 0);
    CHECK(MPI_Get(&value, 1, MPI_INT, 0, 0, 1, MPI_INT, device_window) == 0 && MPI_Win_flush(0, device_window) == 0);
    ++value;
    CHECK(MPI_Put(&value, 1, MPI_INT, 0, 0, 1, MPI_INT, device_window) == 0);
    CHECK(MPI_Win_unlock(0, device_window) == 0);
  }
  MPI_Barrier(WORLD);
  CHECK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, device_window) == 0);
  CHECK(MPI_Get(&value, 1, MPI_INT, 0, 0, 1, MPI_INT, device_window) == 0 && MPI_Win_unlock(0, device_window) == 0);
  CHECK(value == kTurns * ranks);
}

static void all_operations(int has_all_epochs) {
  MPI_Datatype rows, some;
  const int lengths[] = {3, 1, 2}, places[] = {0, 7, 20};
  MPI_Type_vector(20, 2, 5, MPI_INT, &rows);
  MPI_Type_indexed(3, lengths, places, MPI_INT, &some);
  MPI_Type_commit(&rows), MPI_Type_commit(&some);
  open_windows();
  if (window_memory == device_out) attributes();
  for (enum epoch kind = 0; kind < epochs; ++kind) {
    if (!has_all_epochs && kind != by_fence && kind != by_lock_all) continue;
    puts_and_gets(kind, rows, some);
    accumulates(kind, rows, some);
    if (kind == by_lock || kind == by_lock_all) with_requests(kind, rows);
  }
  if (window_memory == device_out && !is_copied) old_rows(rows);
  swaps(by_fence);
  counters();
  exclusion();
  close_windows();
  MPI_Type_free(&rows), MPI_Type_free(&some);
}

/* The first rank brings host memory, the last one none, the others device memory. */
static void mixed(void) {
  enum { kInts = 500 };
  static int host_memory[kInts], seen[kInts];
  int* const own = rank == 0 ? host_memory : (int*)(void*)device_out;
  const int has_memory = ranks == 1 || rank + 1 < ranks || rank == 0;
  MPI_Win window;
  memset(host_memory, 0, sizeof host_memory);
  to_device(device_out, host_memory, sizeof host_memory);
  CHECK(MPI_Win_create(has_memory ? own : NULL, has_memory ? sizeof host_memory : 0, 4, MPI_INFO_NULL, WORLD, &window) == 0);
  for (int i = 0; i < kInts; ++i) seen[i] = rank * 1000 + i;
  to_device(device_in, seen, sizeof seen);
  CHECK(MPI_Win_fence(0, window) == 0);
  for (int target = 0; target < ranks; ++target)
    if (target == 0 || target + 1 < ranks) {
      CHECK(MPI_Put(device_in, 10, MPI_INT, target, 10 * rank, 10, MPI_INT, window) == 0);
      CHECK(MPI_Accumulate(device_in, 5, MPI_INT, target, 400, 5, MPI_INT, MPI_SUM, window) == 0);
    }
  CHECK(MPI_Win_fence(0, window) == 0);
  if (has_memory) {
    if (rank == 0) memcpy(seen, host_memory, sizeof seen);
    else to_host(seen, device_out, sizeof seen);
    for (int i = 0; i < 10 * ranks; ++i) CHECK(seen[i] == i / 10 * 1000 + i % 10);
    for (int i = 0; i < 5; ++i) CHECK(seen[400 + i] == ranks * (ranks - 1) / 2 * 1000 + ranks * i);
  }
  for (int target = 0; target < ranks; ++target)
    if (target == 0 || target + 1 < ranks)
      CHECK(MPI_Get(device_in + 400 * target, 10 * ranks, MPI_INT, target, 0, 10 * ranks, MPI_INT, window) == 0);
  CHECK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window) == 0);
  for (int target = 0; target < ranks; ++target)
    if (target == 0 || target + 1 < ranks) {
      to_host(seen, device_in + 400 * target, 40 * (size_t)ranks);
      for (int i = 0; i < 10 * ranks; ++i) CHECK(seen[i] == i / 10 * 1000 + i % 10);
    }
  CHECK(MPI_Win_free(&window) == 0);
}

#define FAILS(wanted, call)                                                                                   \
  do {                                                                                                        \
    int class = -1;                                                                                           \
    MPI_Error_class(call, &class);                                                                            \
    if (class != wanted) fprintf(stderr, "line %d: error class %d of %s\n", __LINE__, class, #call), exit(1); \
  } while (0)

/* Every one is an error of the window, and changes nothing. */
static void errors(void) {
  MPI_Win window;
  CHECK(MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_RETURN) == 0);
  /* One rank's memory is too short: no rank has a window. */
  FAILS(MPI_ERR_BUFFER,
        MPI_Win_create(device_out, rank == 0 ? (MPI_Aint)1 << 40 : kBytes, 1, MPI_INFO_NULL, WORLD, &window));
  CHECK(MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_ARE_FATAL) == 0);
  open_windows();
  CHECK(MPI_Win_set_errhandler(device_window, MPI_ERRORS_RETURN) == 0);
  begin_epoch(by_lock);
  window = device_window;
  FAILS(MPI_ERR_RANK, MPI_Put(device_in, 1, MPI_INT, ranks, 0, 1, MPI_INT, window));
  CHECK(MPI_Put(device_in, 1, MPI_INT, MPI_PROC_NULL, 0, 1, MPI_INT, window) == 0);
  CHECK(MPI_Get(device_in, 1, MPI_INT, MPI_PROC_NULL, 0, 1, MPI_INT, window) == 0);
  if (!is_copied) {
    FAILS(MPI_ERR_RMA_RANGE, MPI_Put(device_in, 1, MPI_INT, next_rank, kBytes / kUnit, 1, MPI_INT, window));
    FAILS(MPI_ERR_RMA_RANGE, MPI_Get(device_in, 2, MPI_INT, next_rank, kBytes / kUnit - 1, 2, MPI_INT, window));
    FAILS(MPI_ERR_RMA_RANGE,
          MPI_Accumulate(device_in, 2, MPI_INT, next_rank, kBytes / kUnit - 1, 2, MPI_INT, MPI_SUM, window));
    FAILS(MPI_ERR_RMA_RANGE, MPI_Put(device_in, 1, MPI_INT, next_rank, (MPI_Aint)1 << 62, 1, MPI_INT, window));
    FAILS(MPI_ERR_DISP, MPI_Put(device_in, 1, MPI_INT, next_rank, -1, 1, MPI_INT, window));
    FAILS(MPI_ERR_COUNT, MPI_Put(device_in, -1, MPI_INT, next_rank, 0, 1, MPI_INT, window));
    FAILS(MPI_ERR_TYPE, MPI_Put(device_in, 1, MPI_DATATYPE_NULL, next_rank, 0, 1, MPI_INT, window));
    FAILS(MPI_ERR_TRUNCATE, MPI_Put(device_in, 2, MPI_INT, next_rank, 0, 1, MPI_INT, window));
    FAILS(MPI_ERR_BUFFER, MPI_Put(device_in + kBytes - 4, 1 << 13, MPI_INT, next_rank, 0, 1 << 13, MPI_INT, window));
    FAILS(MPI_ERR_BUFFER, MPI_Get(device_in + kBytes - 4, 1 << 13, MPI_INT, next_rank, 0, 1 << 13, MPI_INT, window));
  }
  end_epoch(by_lock);
  compare("errors", __LINE__);
  if (!is_copied) FAILS(MPI_ERR_RMA_SYNC, MPI_Put(device_in, 1, MPI_INT, next_rank, 0, 1, MPI_INT, window));
  compare("no epoch", __LINE__);
  close_windows();
}

/* The target does not call MPI until it sees the file that its origin makes when it is done. */
static void without_the_target(void) {
  char path[64] = "";
  int value = 77;
  if (rank == 0) snprintf(path, sizeof path, "/tmp/peerlane-mpi-done-%d", (int)getpid());
  PMPI_Bcast(path, sizeof path, MPI_CHAR, 0, WORLD);
  open_windows();
  begin_epoch(by_exclusive_lock);
  end_epoch(by_exclusive_lock);
  PMPI_Barrier(WORLD);
  if (rank == 0) {
    to_device(device_in, &value, 4);
    CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, device_window) == 0);
    CHECK(MPI_Put(device_in, 1, MPI_INT, 1, 0, 1, MPI_INT, device_window) == 0);
    CHECK(MPI_Accumulate(device_in, 1, MPI_INT, 1, 0, 1, MPI_INT, MPI_SUM, device_window) == 0);
    CHECK(MPI_Win_unlock(1, device_window) == 0);
    FILE* const done = fopen(path, "w");
    CHECK(done != NULL && fclose(done) == 0);
  } else {
    while (access(path, F_OK) != 0) usleep(1000);
    if (rank == 1) to_host(&value, device_out, 4);
    if (rank == 1) CHECK(value == 154);
  }
  PMPI_Barrier(WORLD);
  if (rank == 0) CHECK(remove(path) == 0);
  close_windows();
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  is_copied = argc > 1;
  MPI_Comm_group(WORLD, &everyone);
  window_memory = device_out, origin_memory = device_in;
  all_operations(1);
  origin_memory = malloc(kBytes); /* a window of the device, and data of the host */
  all_operations(0);
  free(origin_memory);
  window_memory = malloc(kBytes), origin_memory = device_in; /* and the other way round */
  all_operations(0);
  free(window_memory);
  window_memory = device_out;
  mixed();
  errors();
  if (!is_copied && ranks > 1) without_the_target();
  MPI_Group_free(&everyone);
  MPI_Finalize();
  return 0;
}
