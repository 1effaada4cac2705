// SPDX-License-Identifier: Apache-2.0
// C interface of libpeerlane_mpi.so: the little of MPI that a group needs. A library of its own, opened at run time, so that
// the program runs where there is no MPI. One thread.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct peerlane_mpi_world {
  int rank;
  int size;
  char library[128];  // first line of what MPI says about itself
};

enum { PL_MPI_OK = 0, PL_MPI_TIMEOUT = 1, PL_MPI_ERROR = 2 };

// MPI_Init. The text of an error is MPI's own, on stderr.
int peerlane_mpi_init(struct peerlane_mpi_world* world);
// Returns when the message was handed over. After a time-out the bytes must stay where they are until the process ends.
int peerlane_mpi_send(int destination, const void* bytes, size_t count, unsigned timeout_ms);
// Waits for a message of any rank: who sent it, and its length.
int peerlane_mpi_probe(int* source, size_t* count, unsigned timeout_ms);
// Takes the message that was probed.
int peerlane_mpi_take(int source, void* bytes, size_t count);
// Waits for all other ranks to call it, too.
void peerlane_mpi_finalize(void);
// Ends all ranks of the job.
void peerlane_mpi_abort(void);

#ifdef __cplusplus
}
#endif
