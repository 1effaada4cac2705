/* SPDX-License-Identifier: Apache-2.0
 * A flag to the GPU: the CPU stores parameters and then a flag into GPU memory, without a CUDA call. Work that waits on the
 * GPU sees the flag and answers. Here a stream waits; a kernel would poll the same word.
 *
 *   cc flag.c $(pkg-config --cflags --libs peerlane) -lcuda */
#include <peerlane/peerlane.h>

#include "gpu.h"

enum { kFlag = 0, kAnswer = 4, kParameters = 64, kBytes = 4096 };

static int failed(const char* call) { return fprintf(stderr, "%s: %s\n", call, peerlane_last_error()), 1; }

int main(void) {
  const float parameters[16] = {1.5f, 2.5f};
  const uint32_t ready = 1;
  uint32_t answer = 0;
  float seen = 0;
  void* stream = NULL;
  peerlane_session_t session;
  peerlane_mapping_t memory;
  const peerlane_device_ptr_t device_ptr = gpu_memory(0, kBytes);

  if (peerlane_session_open(NULL, &session) != 0) return failed("peerlane_session_open");
  if (peerlane_map(session, device_ptr, kBytes, PEERLANE_MAP_DEFAULT, &memory) != 0) return failed("peerlane_map");

  /* The GPU waits for the flag, then answers. */
  if (cuStreamCreate(&stream, 1) != 0 || cuStreamWaitValue32_v2(stream, device_ptr + kFlag, ready, 0) != 0 ||
      cuStreamWriteValue32_v2(stream, device_ptr + kAnswer, 42, 0) != 0)
    return fprintf(stderr, "the stream takes no memory operations\n"), 1;

  /* Data first, then the flag: each write is ordered before the next. */
  if (peerlane_mapping_write(memory, kParameters, parameters, sizeof parameters) != 0 ||
      peerlane_mapping_write(memory, kFlag, &ready, sizeof ready) != 0)
    return failed("peerlane_mapping_write");

  if (cuStreamSynchronize(stream) != 0) return fprintf(stderr, "the stream failed\n"), 1;
  if (peerlane_mapping_read(memory, kAnswer, &answer, sizeof answer) != 0 ||
      peerlane_mapping_read(memory, kParameters + 4, &seen, sizeof seen) != 0)
    return failed("peerlane_mapping_read");
  printf("the GPU answered %u behind parameters that begin with 1.5, %.1f\n", answer, (double)seen);
  peerlane_unmap(memory);
  peerlane_session_close(session);
  return answer == 42 && seen == 2.5f ? 0 : 1;
}
