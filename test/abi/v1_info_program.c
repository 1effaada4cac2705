/* SPDX-License-Identifier: Apache-2.0
 * Programs from before 2.4 (old NCCL, TensorRT-LLM) own 40 bytes and call the symbol gdr_get_info with them. One byte more
 * would overwrite their stack: a canary stands there. Includes no header of ours, as those programs' own copies do not. */
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

extern gdr_t gdr_open(void);
extern int gdr_close(gdr_t);
extern int gdr_pin_buffer(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t*);
extern int gdr_map(gdr_t, gdr_mh_t, void**, size_t);
extern int gdr_get_info(gdr_t, gdr_mh_t, struct old_info*);

int main(void) {
  struct {
    struct old_info info;
    unsigned char canary[64];
  } frame;
  const unsigned long long device = device_memory(65536);
  gdr_mh_t handle = {0};
  void* va = NULL;
  CHECK(sizeof(struct old_info) == 40);
  gdr_t g = gdr_open();
  CHECK(g != NULL && gdr_pin_buffer(g, device, 65536, 0, 0, &handle) == 0);
  for (int mapped = 0; mapped < 2; ++mapped) {
    if (mapped) CHECK(gdr_map(g, handle, &va, 65536) == 0);
    memset(&frame, 0xa5, sizeof frame);
    CHECK(gdr_get_info(g, handle, &frame.info) == 0);
    for (size_t i = 0; i < sizeof frame.canary; ++i) CHECK(frame.canary[i] == 0xa5);
    CHECK(frame.info.va == device && frame.info.mapped_size == 65536 && frame.info.page_size == 65536);
    CHECK(frame.info.mapped == (unsigned)mapped && frame.info.wc_mapping == (unsigned)mapped);
  }
  memset(&frame, 0xa5, sizeof frame); /* a refused call writes nothing at all */
  CHECK(gdr_get_info(g, (gdr_mh_t){12345}, &frame.info) > 0);
  for (size_t i = 0; i < sizeof frame; ++i) CHECK(((unsigned char*)&frame)[i] == 0xa5);
  CHECK(gdr_close(g) == 0);
  puts("v1 info: ok");
  return 0;
}
