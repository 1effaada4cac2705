/* SPDX-License-Identifier: Apache-2.0
 * A program written to GDRCopy. Nothing of it is Peerlane's; it runs on our libgdrapi.so.2 without the gdrdrv module.
 *
 *   cc drop_in.c $(pkg-config --cflags --libs gdrapi) -lcuda */
#include <gdrapi.h>
#include <string.h>

#include "gpu.h"

int main(void) {
  enum { kBytes = 65536 };
  const char sent[] = "written by the CPU";
  char got[sizeof sent] = "";
  /* GDRCopy pins whole pages of 64 KiB. */
  const unsigned long long pages = (gpu_memory(0, 2 * kBytes) + kBytes - 1) & ~(unsigned long long)(kBytes - 1);
  gdr_mh_t handle;
  void* mapped = NULL;
  gdr_t gdr = gdr_open();
  if (gdr == NULL) return fprintf(stderr, "gdr_open failed\n"), 1;
  if (gdr_pin_buffer(gdr, pages, kBytes, 0, 0, &handle) != 0) return fprintf(stderr, "gdr_pin_buffer failed\n"), 1;
  if (gdr_map(gdr, handle, &mapped, kBytes) != 0) return fprintf(stderr, "gdr_map failed\n"), 1;
  gdr_copy_to_mapping(handle, mapped, sent, sizeof sent);
  gdr_copy_from_mapping(handle, got, mapped, sizeof got);
  printf("read back: %s\n", got);
  gdr_unmap(gdr, handle, mapped, kBytes);
  gdr_unpin_buffer(gdr, handle);
  gdr_close(gdr);
  return strcmp(sent, got) == 0 ? 0 : 1;
}
