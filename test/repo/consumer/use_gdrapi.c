/* SPDX-License-Identifier: Apache-2.0
 * Knows gdrapi.h and nothing else. Works without a GPU: gdr_open may then refuse, and that is an answer too. */
#include <gdrapi.h>
#include <stdio.h>

int main(void) {
  int major = 0, minor = 0;
  gdr_t g;
  gdr_runtime_get_version(&major, &minor);
  if (major != GDR_API_MAJOR_VERSION || minor != GDR_API_MINOR_VERSION) return 1;
  g = gdr_open();
  if (g != NULL && gdr_close(g) != 0) return 2;
  printf("gdrapi %d.%d, %s\n", major, minor, g != NULL ? "opened" : "no backend");
  return 0;
}
