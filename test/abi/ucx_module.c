/* SPDX-License-Identifier: Apache-2.0
 * A client built elsewhere, as UCX's gdr_copy module is: it has its own copy of the interface (numbers as GDRCopy's headers
 * had them, no header of ours), is linked to libgdrapi.so.2, and makes the calls that the module makes, in its order.
 *
 * PL_GENERATION is the header that such a module was compiled with, which decides what it calls (openucx/ucx,
 * src/uct/cuda/gdr_copy):
 *   20  GDRCopy 2.0 to 2.3: gdr_pin_buffer and gdr_get_info with the 40-byte struct (every UCX since 1.7)
 *   24  GDRCopy 2.4: gdr_get_info is a macro for gdr_get_info_v2, 48 bytes; from UCX 1.18 on the versions must agree
 *   25  GDRCopy 2.5 and later: gdr_pin_buffer_v2 where UCX knows UCX_GDR_COPY_USE_PCIE, which forces PCIe and falls back
 */
#include "test/abi/ucx_module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct gdr* gdr_t;
typedef struct {
  unsigned long h;
} gdr_mh_t;

extern gdr_t gdr_open(void);
extern int gdr_close(gdr_t);
extern int gdr_map(gdr_t, gdr_mh_t, void**, size_t);
extern int gdr_unmap(gdr_t, gdr_mh_t, void*, size_t);
extern int gdr_unpin_buffer(gdr_t, gdr_mh_t);
extern int gdr_copy_to_mapping(gdr_mh_t, void*, const void*, size_t);
extern int gdr_copy_from_mapping(gdr_mh_t, void*, const void*, size_t);
extern void gdr_runtime_get_version(int*, int*);

struct info {
  uint64_t va, mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  unsigned mapped : 1, wc_mapping : 1;
#if PL_GENERATION >= 24
  uint32_t mapping_type;
#endif
};

#if PL_GENERATION >= 24
extern int gdr_get_info_v2(gdr_t, gdr_mh_t, struct info*);
#define gdr_get_info gdr_get_info_v2
_Static_assert(sizeof(struct info) == 48, "as the header of 2.4 had it");
enum { kHeaderMinor = PL_GENERATION - 20 };
#else
extern int gdr_get_info(gdr_t, gdr_mh_t, struct info*);
_Static_assert(sizeof(struct info) == 40, "as the headers before 2.4 had it");
enum { kHeaderMinor = 3 };
#endif

#if PL_GENERATION >= 25
extern int gdr_pin_buffer_v2(gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t*);
enum { kPinDefault = 0, kPinForcePcie = 1 };
#else
extern int gdr_pin_buffer(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t*);
#endif

enum { kPageBytes = 65536, kThreads = 3, kRounds = 200 };

/* Registered memory as the module keeps it: what the library writes beyond its struct lands in what stands behind it. */
struct memory {
  gdr_mh_t mh;
  struct info info;
  void* bar_ptr;
  size_t reg_size;
};

static const char kLater[sizeof(void*)] = {0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a};

static int is_info_v1(int major, int minor) { return major < 2 || (major == 2 && minor <= 3); }

static int pin(gdr_t g, unsigned long address, size_t length, gdr_mh_t* handle) {
#if PL_GENERATION >= 25
  if (gdr_pin_buffer_v2(g, address, length, kPinForcePcie, handle) == 0) return 0;
  return gdr_pin_buffer_v2(g, address, length, kPinDefault, handle);
#else
  return gdr_pin_buffer(g, address, length, 0, 0, handle);
#endif
}

static const char* registered(gdr_t g, unsigned long address, size_t length, struct memory* destination) {
  if (pin(g, address, length, &destination->mh) != 0) return "pin";
  if (gdr_map(g, destination->mh, &destination->bar_ptr, length) != 0) return "gdr_map";
  destination->reg_size = length;
  void* const bar_ptr = destination->bar_ptr;
  memcpy(&destination->bar_ptr, kLater, sizeof kLater);
  const int code = gdr_get_info(g, destination->mh, &destination->info);
  const int overwritten = memcmp(&destination->bar_ptr, kLater, sizeof kLater) != 0;
  destination->bar_ptr = bar_ptr;
  if (code != 0) return "gdr_get_info";
  if (overwritten) return "gdr_get_info wrote more than the struct of this module's header";
  if (destination->info.va != address || destination->info.mapped_size < length || destination->info.page_size != kPageBytes)
    return "info's fields";
  if (!destination->info.mapped || !destination->info.wc_mapping) return "info's flags";
#if PL_GENERATION >= 24
  if (destination->info.mapping_type != 1) return "info's mapping type";
#endif
  return NULL;
}

/* put_short and get_short: any length at any offset, with no lock, by threads that share the handle. */
struct worker {
  const struct memory* memory;
  size_t begin, length;
  const char* trouble;
};

static void* copies(void* argument) {
  struct worker* mine = argument;
  unsigned char out[512], back[512];
  for (size_t round = 0; round < kRounds && mine->trouble == NULL; ++round) {
    const size_t length = 1 + round * 7 % sizeof out, offset = mine->begin + round * 61 % (mine->length - sizeof out);
    char* const target = (char*)mine->memory->bar_ptr + offset;
    for (size_t i = 0; i < length; ++i) out[i] = (unsigned char)(round + i * 3 + mine->begin);
    if (gdr_copy_to_mapping(mine->memory->mh, target, out, length) != 0) mine->trouble = "gdr_copy_to_mapping";
    else if (gdr_copy_from_mapping(mine->memory->mh, back, target, length) != 0) mine->trouble = "gdr_copy_from_mapping";
    else if (memcmp(out, back, length) != 0) mine->trouble = "what was put is not what was got";
  }
  return NULL;
}

static const char* used(const struct memory* memory) {
  pthread_t threads[kThreads];
  struct worker workers[kThreads];
  const char* trouble = NULL;
  for (size_t i = 0; i < kThreads; ++i) {
    const size_t share = memory->reg_size / kThreads;
    workers[i] = (struct worker){memory, i * share, share, NULL};
    if (pthread_create(&threads[i], NULL, copies, &workers[i]) != 0) abort();
  }
  for (size_t i = 0; i < kThreads; ++i) {
    pthread_join(threads[i], NULL);
    if (workers[i].trouble != NULL) trouble = workers[i].trouble;
  }
  return trouble;
}

__attribute__((visibility("default"))) const char* ucx_module_life(unsigned long address, size_t bytes,
                                                                   void (*free_it)(void)) {
  int major = 0, minor = 0;
  gdr_runtime_get_version(&major, &minor);
  /* UCX 1.18 and later leave the module out if these differ; earlier ones with old headers do not look. */
  if (PL_GENERATION >= 24 && is_info_v1(2, kHeaderMinor) != is_info_v1(major, minor)) return "the version's class";
  gdr_t asked = gdr_open(); /* once to see whether there is a device, then for good */
  if (asked == NULL || gdr_close(asked) != 0) return "gdr_open, gdr_close";
  gdr_t g = gdr_open();
  if (g == NULL) return "gdr_open again";

  /* The registration cache widens what it is asked for to pages, and asks for parts of an allocation side by side. */
  struct memory first, second;
  const size_t half = bytes / 2 / kPageBytes * kPageBytes;
  const char* trouble = registered(g, address, half, &first);
  if (trouble == NULL) trouble = registered(g, address + half, bytes - half, &second);
  if (trouble == NULL) trouble = used(&first);
  if (trouble == NULL) trouble = used(&second);
  if (trouble != NULL) return trouble;

  /* Deregistered by hand, and after the application freed the memory: the cache hears of it afterwards. */
  if (gdr_unmap(g, first.mh, first.bar_ptr, first.reg_size) != 0) return "gdr_unmap";
  if (gdr_unpin_buffer(g, first.mh) != 0) return "gdr_unpin_buffer";
  free_it();
  if (gdr_unmap(g, second.mh, second.bar_ptr, second.reg_size) != 0) return "gdr_unmap of freed memory";
  if (gdr_unpin_buffer(g, second.mh) != 0) return "gdr_unpin_buffer of freed memory";
  return gdr_close(g) == 0 ? NULL : "gdr_close";
}
