/* SPDX-License-Identifier: Apache-2.0
 * Stores into GPU memory and reads it back, with whatever libcuda.so.1 PEERLANE_GPU chose: the program links none. */
#include <dlfcn.h>
#include <peerlane/peerlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long allocate(size_t size) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*alloc)(unsigned long long*, size_t);
  void* context = NULL;
  unsigned long long address = 0;
  if (driver == NULL) return 0;
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void**)&set_current = dlsym(driver, "cuCtxSetCurrent");
  *(void**)&alloc = dlsym(driver, "cuMemAlloc_v2");
  if (init(0) || retain(&context, 0) || set_current(context) || alloc(&address, size)) return 0;
  return address;
}

int main(void) {
  enum { kBytes = 65536 };
  const char sent[] = "a store of the CPU";
  char got[sizeof sent] = "";
  peerlane_session_t session;
  peerlane_mapping_t mapping;
  int is_simulated = 0;
  const unsigned long long address = allocate(kBytes);
  if (address == 0) {
    puts("no GPU memory");
    return EXIT_FAILURE;
  }
  if (peerlane_session_open(NULL, &session) || peerlane_session_is_simulated(session, &is_simulated) ||
      peerlane_map(session, address, kBytes, 0, &mapping) || peerlane_mapping_write(mapping, 0, sent, sizeof sent) ||
      peerlane_mapping_read(mapping, 0, got, sizeof got)) {
    puts(peerlane_last_error());
    return EXIT_FAILURE;
  }
  printf("%s GPU, %s\n", is_simulated ? "simulated" : "real",
         strcmp(sent, got) == 0 ? "written and read back" : "other bytes");
  if (peerlane_unmap(mapping) || peerlane_session_close(session)) return EXIT_FAILURE;
  return is_simulated && strcmp(sent, got) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
