/* SPDX-License-Identifier: Apache-2.0
 * simulated_gpu_program LIBRARY [DRIVER]: opens a library of Peerlane by its path as a program of somebody else's does
 * (after DRIVER, if given), then says which libcuda.so.1 this process has and, for libgdrapi, whether it opens:
 * simulated_gpu_test.cpp.
 * "-" for LIBRARY: nothing is opened, for preloaded ones. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void say_driver(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned);
  int (*count)(int*);
  int devices = 0;
  if (driver == NULL) {
    printf("driver none\n");
    return;
  }
  printf("driver %s\n", dlsym(driver, "peerlaneSimVersion") != NULL ? "simulated" : "other");
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&count = dlsym(driver, "cuDeviceGetCount");
  if (init(0) == 0 && count(&devices) == 0) printf("devices %d\n", devices);
}

static void say_opens(void* library) {
  void* (*open_call)(void);
  const char* (*error_call)(void);
  *(void**)&open_call = dlsym(library, "gdr_open");
  *(void**)&error_call = dlsym(library, "gdr_last_error");
  if (open_call == NULL || error_call == NULL) return;
  printf("open %d\n", open_call() != NULL);
  printf("%s\n", error_call());
}

int main(int argc, char** argv) {
  void* library = NULL;
  if (argc < 2 || (argc > 2 && dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) == NULL)) {
    fprintf(stderr, "%s\n", argc < 2 ? "no library named" : dlerror());
    return 1;
  }
  if (strcmp(argv[1], "-") != 0 && (library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (library != NULL) say_opens(library);
  say_driver();
  return 0;
}
