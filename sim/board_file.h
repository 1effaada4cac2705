/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * A device file that stands for a board's memory and page tables. The simulated GPU takes its memory from it when
 * PEERLANE_SIM_BOARD_FILE names one; test/kernel/mock is one, so that a kernel driver can find the simulated GPU's
 * allocations. Each open file is one memory object: ALLOC gives it its size, mmap shows its bytes, BIND gives it device
 * addresses of the calling process, closing frees it. C and C++.
 */
#ifndef PEERLANE_BOARD_FILE_H
#define PEERLANE_BOARD_FILE_H

#ifdef __KERNEL__
#include <linux/ioctl.h>
#include <linux/types.h>
#else
#include <linux/types.h>
#include <sys/ioctl.h>
#endif

struct board_alloc {
  __u64 bytes; /* rounded up to 64 KiB; the memory reads as zeros */
};

struct board_bind {
  __u64 address; /* device address, a multiple of 64 KiB; not bound yet */
  __u64 bytes;   /* a multiple of 64 KiB */
  __u64 offset;  /* in the object, a multiple of 64 KiB */
};

struct board_unbind { /* exactly what was bound: this is the moment in which memory is freed */
  __u64 address;
  __u64 bytes;
};

struct board_pte { /* of the calling process */
  __u64 address;
  __u64 pte; /* out: 0 if there is none */
};

struct board_statistics { /* of all processes; all out */
  __u32 pages_used;
  __u32 bindings;
  __u32 revocable_tables;
  __u32 persistent_tables;
  __u32 callbacks;        /* so far */
  __u32 puts_in_callback; /* so far; a deadlock in the real driver */
  __u32 unknown_puts;     /* so far: of persistent tables that do not exist */
  __u32 late_puts;        /* so far: of revocable tables that a callback had before */
};

#define BOARD_IOC_ALLOC _IOW('B', 1, struct board_alloc)
#define BOARD_IOC_BIND _IOW('B', 2, struct board_bind)
#define BOARD_IOC_UNBIND _IOW('B', 3, struct board_unbind)
#define BOARD_IOC_PTE _IOWR('B', 4, struct board_pte)
#define BOARD_IOC_STATISTICS _IOR('B', 5, struct board_statistics)

#endif
