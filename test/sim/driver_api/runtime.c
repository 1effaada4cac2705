/* SPDX-License-Identifier: Apache-2.0
 * What a program of the CUDA runtime meets on the simulated GPU: libcudart's question for private tables is refused with an
 * explanation, and the driver API goes on as if the runtime had made the primary context current. */
#include "test/sim/driver_api/check.h"

static void say_why_once(void) {
  static const char name[] = "sim-runtime-stderr.txt";
  static const CUuuid table = {{0}};
  const void* found = &table;
  char text[2048] = "";
  FILE* said;
  size_t bytes = 0;
  if (freopen(name, "w", stderr) == NULL) abort();
  ANSWERS(NOT_SUPPORTED, cuGetExportTable(&found, &table));
  HOLDS(found == NULL);
  ANSWERS(NOT_SUPPORTED, cuGetExportTable(&found, &table));
  fflush(stderr);
  said = fopen(name, "r");
  if (said != NULL) {
    bytes = fread(text, 1, sizeof text - 1, said);
    fclose(said);
  }
  text[bytes] = 0;
  remove(name);
  HOLDS(strstr(text, "CUDA runtime (libcudart, cuda*)") != NULL);
  HOLDS(strstr(text, "cudaErrorNotSupported") != NULL);
  HOLDS(strchr(text, '\n') == strrchr(text, '\n')); /* one line */
}

int main(void) {
  CUcontext context = NULL;
  CUstream stream;
  CUdevice device = -1;
  void* host = NULL;
  OK(cuInit(0));
  ANSWERS(INVALID_CONTEXT, cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_PORTABLE));
  say_why_once();
  OK(cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_PORTABLE));
  OK(cuCtxGetCurrent(&context));
  HOLDS(context != NULL);
  OK(cuCtxGetDevice(&device));
  HOLDS(device == 0);
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamDestroy(stream));
  OK(cuMemFreeHost(host));
  return report("runtime");
}
