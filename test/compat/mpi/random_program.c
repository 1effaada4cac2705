/* SPDX-License-Identifier: Apache-2.0
 * Random messages between all ranks, from and to every kind of memory, against a model in host memory. All ranks draw the
 * same numbers, so each knows what will arrive where. Arguments: seed, rounds. */
#include "test/compat/mpi/mpi_program.h"

int cuMemAllocHost_v2(void** pointer, size_t bytes);
int cuMemAllocManaged(unsigned long long* pointer, size_t bytes, unsigned flags);

enum { kMessages = 20, kLargest = 300000, kKinds = 4, kArena = 3000000 };

static unsigned char* arenas[2][kKinds]; /* to send from, to receive in: device, plain, pinned, managed */
static unsigned char *model, *scratch;
static unsigned long long state;

static unsigned draw(unsigned below) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(state >> 33) % below;
}

static void make_arenas(void) {
  unsigned long long managed;
  for (int way = 0; way < 2; ++way) {
    arenas[way][0] = device_bytes(kArena);
    arenas[way][1] = malloc(kArena);
    CHECK(cuMemAllocHost_v2((void**)&arenas[way][2], kArena) == 0);
    CHECK(cuMemAllocManaged(&managed, kArena, 1) == 0);
    arenas[way][3] = (unsigned char*)managed;
  }
  model = malloc(kArena);
  scratch = malloc(kArena);
}

static void write_to(unsigned char* arena, int kind, size_t offset, const void* source, size_t bytes) {
  if (bytes == 0) return;
  if (kind == 0) to_device(arena + offset, source, bytes);
  else memcpy(arena + offset, source, bytes);
}

static unsigned size_of_message(void) {
  switch (draw(4)) {
    case 0:
      return draw(16);
    case 1:
      return draw(5000);
    case 2:
      return draw(70000);
    default:
      return draw(2) ? draw(kLargest) : 0;
  }
}

static int begin_send(int method, const void* source, unsigned bytes, int destination, int tag, MPI_Request* request) {
  if (method == 0) return MPI_Isend(source, (int)bytes, MPI_BYTE, destination, tag, MPI_COMM_WORLD, request);
  if (method == 1) return MPI_Issend(source, (int)bytes, MPI_BYTE, destination, tag, MPI_COMM_WORLD, request);
  const int code = MPI_Send_init(source, (int)bytes, MPI_BYTE, destination, tag, MPI_COMM_WORLD, request);
  return code == 0 ? MPI_Start(request) : code;
}

static void end(int method, MPI_Request* list, int n) {
  int index, flag, indices[2 * kMessages];
  if (method == 0) CHECK(MPI_Waitall(n, list, MPI_STATUSES_IGNORE) == 0);
  if (method == 1) do
      CHECK(MPI_Waitany(n, list, &index, MPI_STATUS_IGNORE) == 0);
    while (index != MPI_UNDEFINED);
  if (method == 2) do
      CHECK(MPI_Waitsome(n, list, &index, indices, MPI_STATUSES_IGNORE) == 0);
    while (index != MPI_UNDEFINED);
  if (method == 3) do
      CHECK(MPI_Testall(n, list, &flag, MPI_STATUSES_IGNORE) == 0);
    while (!flag);
}

/* Receives lie in arenas[1][receiver's kind] at `at`, and the model is that arena. */
static void one_round(int round) {
  MPI_Request list[2 * kMessages], persistent[kMessages];
  const int target_kind = (int)draw(kKinds), how_to_end = (int)draw(4);
  size_t offset = 0;
  int n = 0, kept = 0;
  memset(model, (int)draw(256), kArena);
  write_to(arenas[1][target_kind], target_kind, 0, model, kArena);
  for (int i = 0; i < kMessages; ++i) {
    const int source = (int)draw((unsigned)ranks), destination = (int)draw((unsigned)ranks), kind = (int)draw(kKinds),
              method = (int)draw(3);
    const unsigned bytes = size_of_message(), more = draw(3) * 100, value = draw(256), misfit = draw(64);
    const int any = draw(2) == 0;
    if (offset + bytes + more + misfit > kArena) break;
    /* A rank may be a round ahead of the one that waits for any source. */
    const int tag = round * kMessages + i;
    offset += misfit;
    for (unsigned b = 0; b < bytes; ++b) scratch[b] = (unsigned char)(value + b * 13);
    if (rank == destination) {
      memcpy(model + offset, scratch, bytes);
      CHECK(MPI_Irecv(arenas[1][target_kind] + offset, (int)(bytes + more), MPI_BYTE, any ? MPI_ANY_SOURCE : source, tag,
                      MPI_COMM_WORLD, &list[n++]) == 0);
    }
    if (rank == source) {
      write_to(arenas[0][kind], kind, offset, scratch, bytes);
      CHECK(begin_send(method, arenas[0][kind] + offset, bytes, destination, tag, &list[n]) == 0);
      if (method == 2) persistent[kept++] = list[n];
      ++n;
    }
    offset += bytes + more;
  }
  if (kept != 0 || how_to_end == 0) /* persistent requests never become null: all at once */
    end(kept % 2 ? 3 : 0, list, n);
  else end(how_to_end, list, n);
  for (int i = 0; i < kept; ++i) CHECK(MPI_Request_free(&persistent[i]) == 0);
  if (target_kind == 0) to_host(scratch, arenas[1][0], kArena);
  else memcpy(scratch, arenas[1][target_kind], kArena);
  CHECK(memcmp(scratch, model, kArena) == 0);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int rounds = argc > 2 ? atoi(argv[2]) : 20;
  make_arenas();
  for (int i = 0; i < rounds; ++i) one_round(i);
  MPI_Finalize();
  return 0;
}
