/* SPDX-License-Identifier: Apache-2.0
 * gdrapi.h as a C client sees it: the literals of gdrapi_layout.inc at compile time; where the bit-fields lie, which no
 * constant expression can tell, through bytes. */
#include <stddef.h>
#include <string.h>

#include "gdrapi.h"

#define CHECK(condition) _Static_assert(condition, #condition)
#include "test/abi/gdrapi_layout.inc"

#ifndef gdr_get_info
#error "gdr_get_info is a macro for gdr_get_info_v2 since 2.4: clients compiled today pass the 48-byte struct"
#endif

/* The word at byte 36 with only the named bit set. */
unsigned gdrapi_layout_word(int version, int wc_mapping) {
  unsigned char bytes[48] = {0};
  unsigned word;
  if (version == 1) {
    gdr_info_v1_t info;
    memset(&info, 0, sizeof info);
    if (wc_mapping) info.wc_mapping = 1;
    else info.mapped = 1;
    memcpy(bytes, &info, sizeof info);
  } else {
    gdr_info_v2_t info;
    memset(&info, 0, sizeof info);
    if (wc_mapping) info.wc_mapping = 1;
    else info.mapped = 1;
    memcpy(bytes, &info, sizeof info);
  }
  memcpy(&word, bytes + 36, sizeof word);
  return word;
}
