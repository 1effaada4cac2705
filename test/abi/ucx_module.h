/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEERLANE_TEST_UCX_MODULE_H
#define PEERLANE_TEST_UCX_MODULE_H

#include <stddef.h>
#include <stdint.h>

/* What UCX's gdr_copy module does with `bytes` of device memory, from its loading to its end; `free_it` frees the memory,
 * which happens before the module lets go of it. NULL, or what did not work. */
const char* ucx_module_life(unsigned long address, size_t bytes, void (*free_it)(void));
typedef const char* (*ucx_module_life_fn)(unsigned long address, size_t bytes, void (*free_it)(void));

#endif
