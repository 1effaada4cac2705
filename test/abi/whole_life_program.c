/* SPDX-License-Identifier: Apache-2.0
 * A program that knows gdrapi.h and nothing else of ours, linked with -lgdrapi as UCX and libgdsync are: the whole life of
 * a mapping, raw loads and stores included, each result compared with what CUDA copies. */
#include <errno.h>
#include <gdrapi.h>
#include <stdint.h>
#include <string.h>

#include "test/abi/c_program.h"

enum { kBytes = 5 * 65536 };

int main(void) {
  const unsigned long long device = device_memory(kBytes);
  static unsigned char host[kBytes], seen[kBytes];
  int major = 0, minor = 0, flag = -1, value = -1;
  void* va = NULL;
  const char* text = NULL;
  gdr_mh_t handle = {77};
  gdr_info_t info;

  errno = 4242;
  gdr_runtime_get_version(&major, &minor);
  CHECK(major == GDR_API_MAJOR_VERSION && minor == GDR_API_MINOR_VERSION);
  gdr_t g = gdr_open();
  CHECK(g != NULL);
  CHECK(gdr_driver_get_version(g, &major, &minor) == 0 && major == 2 && minor == 6);
  CHECK(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value) == 0 && value == 1);
  CHECK(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &value) == 0 && value == 0);

  CHECK(gdr_pin_buffer(g, device, kBytes, 1, 2, &handle) == 0 && handle.h != 0 && handle.h != 77);
  CHECK(gdr_get_info(g, handle, &info) == 0);
  CHECK(info.va == device && info.mapped_size == kBytes && info.page_size == GPU_PAGE_SIZE);
  CHECK(info.mapped == 0 && info.mapping_type == GDR_MAPPING_TYPE_NONE);
  CHECK(gdr_map(g, handle, &va, kBytes) == 0 && va != NULL);
  CHECK(gdr_get_info(g, handle, &info) == 0);
  CHECK(info.mapped == 1 && info.wc_mapping == 1 && info.mapping_type == GDR_MAPPING_TYPE_WC);
  CHECK(gdr_get_mapping_type_string(info.mapping_type, &text) == 0 && strcmp(text, "Write Combining") == 0);
  CHECK(gdr_get_callback_flag(g, handle, &flag) == 0 && flag == 0);

  /* Raw stores and loads through the pointer, as NCCL's flags and libgdsync's polling use it. */
  volatile uint32_t* words = va;
  for (uint32_t i = 0; i < kBytes / 4; i += 997) words[i] = i * 2654435761u;
  CHECK(cuMemcpyDtoH_v2(seen, device, kBytes) == 0);
  for (uint32_t i = 0; i < kBytes / 4; i += 997) CHECK(((uint32_t*)seen)[i] == i * 2654435761u);
  const uint32_t one = 0x11223344;
  CHECK(cuMemcpyHtoD_v2(device + 4096, &one, 4) == 0);
  CHECK(cuCtxSynchronize() == 0); /* a small copy from pageable memory may return before the data is there */
  CHECK(words[1024] == one);
  CHECK(__atomic_fetch_add(words + 1024, 1, __ATOMIC_SEQ_CST) == one && words[1024] == one + 1);

  /* Copies at the offsets that the original's own test uses. */
  static const size_t offsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 11, 129, 1023};
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; ++i) {
    const size_t offset = offsets[i], size = kBytes - offset;
    for (size_t b = 0; b < size; ++b) host[b] = (unsigned char)(b * 7 + i);
    CHECK(gdr_copy_to_mapping(handle, (char*)va + offset, host, size) == 0);
    CHECK(cuMemcpyDtoH_v2(seen, device + offset, size) == 0 && memcmp(seen, host, size) == 0);
    memset(seen, 0, sizeof seen);
    CHECK(gdr_copy_from_mapping(handle, seen, (char*)va + offset, size) == 0 && memcmp(seen, host, size) == 0);
  }

  CHECK(gdr_unmap(g, handle, va, kBytes) == 0);
  CHECK(gdr_get_info(g, handle, &info) == 0 && info.mapped == 0);
  CHECK(gdr_unpin_buffer(g, handle) == 0);
  CHECK(gdr_close(g) == 0);
  CHECK(errno == 4242); /* no successful call touches it */
  puts("whole life: ok");
  return 0;
}
