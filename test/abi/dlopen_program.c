/* SPDX-License-Identifier: Apache-2.0
 * NCCL before its 2026 wrapper, TensorRT-LLM and libfabric, reduced to what they do to the library: dlopen of the
 * unversioned name, eleven mandatory symbols, gdr_driver_get_version through a pointer that returns void with outputs that
 * were never initialised, open - close - open, and (libfabric) dlclose while the pointers stay in use. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "test/abi/c_program.h"

typedef struct old_gdr* gdr_t;
typedef struct {
  unsigned long h;
} gdr_mh_t;
struct old_info {
  uint64_t va, mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  unsigned mapped : 1, wc_mapping : 1;
};

static void* must(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) fprintf(stderr, "missing: %s\n", name);
  CHECK(found != NULL);
  return found;
}

int main(void) {
  const unsigned long long device = device_memory(65536);
  void* library = dlopen("libgdrapi.so", RTLD_NOW);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL);
  gdr_t (*open)(void) = (gdr_t(*)(void))must(library, "gdr_open");
  int (*close)(gdr_t) = (int (*)(gdr_t))must(library, "gdr_close");
  int (*pin)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t*) =
      (int (*)(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t*))must(library, "gdr_pin_buffer");
  int (*unpin)(gdr_t, gdr_mh_t) = (int (*)(gdr_t, gdr_mh_t))must(library, "gdr_unpin_buffer");
  int (*get_info)(gdr_t, gdr_mh_t, struct old_info*) =
      (int (*)(gdr_t, gdr_mh_t, struct old_info*))must(library, "gdr_get_info");
  int (*map)(gdr_t, gdr_mh_t, void**, size_t) = (int (*)(gdr_t, gdr_mh_t, void**, size_t))must(library, "gdr_map");
  int (*unmap)(gdr_t, gdr_mh_t, void*, size_t) = (int (*)(gdr_t, gdr_mh_t, void*, size_t))must(library, "gdr_unmap");
  void (*runtime_version)(int*, int*) = (void (*)(int*, int*))must(library, "gdr_runtime_get_version");
  void (*driver_version)(gdr_t, int*, int*) = (void (*)(gdr_t, int*, int*))must(library, "gdr_driver_get_version");
  int (*copy_to)(gdr_mh_t, void*, const void*, size_t) =
      (int (*)(gdr_mh_t, void*, const void*, size_t))must(library, "gdr_copy_to_mapping");
  int (*copy_from)(gdr_mh_t, void*, const void*, size_t) =
      (int (*)(gdr_mh_t, void*, const void*, size_t))must(library, "gdr_copy_from_mapping");

  int major, minor; /* uninitialised on purpose, poisoned below in case the stack happens to fit */
  memset(&major, 0xee, sizeof major);
  memset(&minor, 0xee, sizeof minor);
  runtime_version(&major, &minor);
  CHECK(major * 100 + minor >= 201);
  for (int round = 0; round < 2; ++round) {
    gdr_t g = open();
    CHECK(g != NULL);
    memset(&major, 0xee, sizeof major);
    memset(&minor, 0xee, sizeof minor);
    driver_version(g, &major, &minor);
    CHECK(major == 2 && minor >= 5);
    if (round == 1) dlclose(library);
    gdr_mh_t handle = {0};
    struct old_info info;
    void* va = NULL;
    CHECK(pin(g, device, 65536, 0, 0, &handle) == 0);
    CHECK(map(g, handle, &va, 65536) == 0);
    CHECK(get_info(g, handle, &info) == 0 && info.va == device);
    char* address = (char*)va + (device - info.va);
    CHECK(copy_to(handle, address, "nccl", 4) == 0);
    char seen[4] = "";
    CHECK(copy_from(handle, seen, address, 4) == 0 && memcmp(seen, "nccl", 4) == 0);
    CHECK(cuMemcpyDtoH_v2(seen, device, 4) == 0 && memcmp(seen, "nccl", 4) == 0);
    CHECK(unmap(g, handle, va, 65536) == 0 && unpin(g, handle) == 0 && close(g) == 0);
  }
  puts("dlopen: ok");
  return 0;
}
