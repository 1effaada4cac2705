/* SPDX-License-Identifier: Apache-2.0
 * The sizes of kernel_paging.cu and kernel_paging.cpp. */
#ifndef EXAMPLE_KERNEL_PAGING_H
#define EXAMPLE_KERNEL_PAGING_H

enum { kPageBytes = 16384, kPages = 32 };

#endif
