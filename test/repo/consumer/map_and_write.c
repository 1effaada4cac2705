/* SPDX-License-Identifier: Apache-2.0
 * Stores into memory of a GPU and reads it back, by peerlane.h; knows of CUDA only what it calls. */
#include <peerlane/peerlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(unsigned long long* address, size_t size);

int main(void) {
  enum { kBytes = 4096, kOffset = 13 };
  const char sent[] = "a store of the CPU";
  char got[sizeof sent] = "";
  void* context = NULL;
  unsigned long long address = 0;
  peerlane_session_t session;
  peerlane_mapping_t mapping;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&address, kBytes)) {
    puts("no GPU memory");
    return EXIT_FAILURE;
  }
  if (peerlane_session_open(NULL, &session) || peerlane_map(session, address, kBytes, 0, &mapping) ||
      peerlane_mapping_write(mapping, kOffset, sent, sizeof sent) ||
      peerlane_mapping_read(mapping, kOffset, got, sizeof got)) {
    puts(peerlane_last_error());
    return EXIT_FAILURE;
  }
  printf("%s, through the backend %s\n", strcmp(sent, got) == 0 ? "written and read back" : "other bytes came back",
         peerlane_session_backend_name(session));
  if (peerlane_unmap(mapping) || peerlane_session_close(session) || strcmp(sent, got) != 0) return EXIT_FAILURE;
  return EXIT_SUCCESS;
}
