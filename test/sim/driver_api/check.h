/* SPDX-License-Identifier: Apache-2.0
 * Shared by the C programs of this folder: they know cuda.h and nothing of Peerlane, so they run on a real driver too. What
 * they expect was measured on an H200 with driver 580.159 (CUDA 13.0), or is what the CUDA documentation says. */
#ifndef CHECK_H
#define CHECK_H

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int g_failures;

static void check_result(const char* file, int line, const char* call, CUresult wanted, CUresult got) {
  if (wanted == got) return;
  printf("%s:%d: %s answered %d, not %d\n", file, line, call, (int)got, (int)wanted);
  ++g_failures;
}

static void check_true(const char* file, int line, const char* expression, int is_true) {
  if (is_true) return;
  printf("%s:%d: not true: %s\n", file, line, expression);
  ++g_failures;
}

#define ANSWERS(code, call) check_result(__FILE__, __LINE__, #call, CUDA_ERROR_##code, call)
#define OK(call) check_result(__FILE__, __LINE__, #call, CUDA_SUCCESS, call)
#define HOLDS(expression) check_true(__FILE__, __LINE__, #expression, (expression) != 0)

static int report(const char* name) {
  printf("%s: %s (%d)\n", name, g_failures == 0 ? "as expected" : "FAILED", g_failures);
  return g_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
