/* SPDX-License-Identifier: Apache-2.0
 * Opens the library and says what happened, for tests that need a process with its own environment: probe_test.cpp.
 * "open <0|1>", then the sentence behind the last failure; with an argument also one refused call after a good open. */
#include <gdrapi.h>
#include <stdio.h>

int main(int argc, char** argv) {
  (void)argv;
  gdr_t g = gdr_open();
  printf("open %d\n", g != NULL);
  if (argc > 1 && g != NULL) {
    gdr_mh_t handle;
    printf("pin %d\n", gdr_pin_buffer(g, 0, 4096, 0, 0, &handle));
  }
  printf("%s\n", gdr_last_error());
  if (g != NULL) gdr_close(g);
  return 0;
}
