/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A stand-in for the NVIDIA driver: GPU memory is the BAR of QEMU's ivshmem device, page tables are lists.
 *
 *   memory.c   the BAR's 64 KiB pages, the device file (sim/board_file.h), the PCI driver
 *   p2p.c      what it exports: nvidia_p2p_*
 *
 * One mutex, rm_lock, is held over freeing, over the callback and in every exported function, as the real driver holds its
 * API lock; user memory is touched under it too, as the real driver does. Only symbols that a proprietary module may use
 * are used, since the mock is also built as one.
 */
#ifndef MOCK_H
#define MOCK_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include "board_file.h"
#include "nvidia_p2p.h"

#define MOCK_PAGE_SHIFT 16
#define MOCK_PAGE_SIZE (1UL << MOCK_PAGE_SHIFT)

struct mock_object { /* one open file */
	u32 page_count;
	u32 *pages; /* numbers of BAR pages */
};

struct mock_binding {
	struct list_head entry;
	struct mock_object *object;
	pid_t tgid;
	u64 address, bytes, offset;
};

extern struct mutex mock_rm_lock;
extern struct board_statistics mock_statistics;

/* memory.c; under rm_lock */
extern struct list_head mock_bindings;
u64 mock_physical(u32 page);
void mock_page_get(u32 page);
void mock_page_put(u32 page);

/* p2p.c; under rm_lock: the addresses are freed, callbacks run */
void mock_revoke(pid_t tgid, u64 address, u64 bytes);

#endif
