/* SPDX-License-Identifier: Apache-2.0
 * ucx_program MODULE...: loads each module as UCX loads its own, every symbol bound at once, and lets it live. A function
 * that is gone from libgdrapi.so.2 ends this with the loader's sentence. */
#include <dlfcn.h>

#include "test/abi/c_program.h"
#include "test/abi/ucx_module.h"

enum { kBytes = 6 * 65536 };

static unsigned long long g_device;

/* device_memory rounds up, so what cuMemAlloc_v2 gave is asked of the driver. */
int cuMemGetAddressRange_v2(unsigned long long* base, size_t* bytes, unsigned long long pointer);

static void free_device(void) {
  unsigned long long base = 0;
  size_t bytes = 0;
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, g_device) == 0);
  CHECK(cuMemFree_v2(base) == 0);
}

int main(int count, char** modules) {
  CHECK(count > 1);
  for (int i = 1; i < count; ++i) {
    void* module = dlopen(modules[i], RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    const ucx_module_life_fn life = (ucx_module_life_fn)dlsym(module, "ucx_module_life");
    CHECK(life != NULL);
    g_device = device_memory(kBytes);
    const char* trouble = life(g_device, kBytes, free_device);
    if (trouble != NULL) {
      fprintf(stderr, "%s: %s\n", modules[i], trouble);
      return 1;
    }
    CHECK(dlclose(module) == 0);
  }
  puts("ucx modules: ok");
  return 0;
}
