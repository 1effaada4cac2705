/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * gdrdrv: CPU mappings of GPU memory for libgdrapi (ours and the stock one).
 *
 *   main.c      module, device node, parameters, /proc
 *   file.c      open, release, ioctl
 *   region.c    a pin: handle, lifetime, queries
 *   provider.c  the NVIDIA driver's side of a pin
 *   mmap.c      the user's side of a pin: faults, zapping, memory types
 *
 * Objects. An open file has a tree of regions by handle, and its own address_space, in which the region with handle h
 * occupies the page offsets h .. h + pages - 1. References to a region: one of the tree, one of each mapping (VMA), and one
 * of the GPU driver while it may still call back. References to a file: one of the descriptor, and one of each region.
 *
 * Lock order, outermost first:
 *
 *   1. mmap_lock or VMA lock of the process     held by the kernel around mmap, fault, open, close of a VMA
 *   1. the GPU driver's own lock                held by it around the free callback
 *   2. file->lock     (mutex)                   the tree and the next handle
 *   3. region->lock   (rwsem)                   all members of a region that change
 *   4. i_mmap_rwsem, page table locks, memtype lock   inside unmap_mapping_range, vmf_insert_pfn_prot, memtype calls
 *
 * The GPU driver takes mmap_lock under its own lock, and the callback takes region->lock under that. Therefore
 *   - the GPU driver is never called under mmap_lock, file->lock or region->lock: not from mmap, fault or close;
 *   - user memory is not accessed under file->lock or region->lock (it may fault, and a fault takes mmap_lock);
 *   - the callback takes only region->lock, never file->lock;
 *   - mappings are zapped with no lock of this driver held: after `dead` is set under region->lock, no fault inserts a PTE.
 * provider_lock (provider.c) is held around calls into the GPU driver, so it comes before the GPU driver's lock. Nothing
 * takes it while any of the above is held, and the callback does not take it.
 */
#ifndef GDRDRV_H
#define GDRDRV_H

/* Must precede all headers of the kernel, so every file includes this one first. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/types.h>

#include "compat.h"
#include "gdrdrv_ioctl.h"
#include "nvidia_p2p.h"

#define GDRDRV_VERSION_MAJOR 2
#define GDRDRV_VERSION_MINOR 6
#define GDRDRV_GPU_PAGE_SHIFT 16
#define GDRDRV_GPU_PAGE_SIZE (1ULL << GDRDRV_GPU_PAGE_SHIFT)
/* The stock library stores only 32 bits of a handle. */
#define GDRDRV_HANDLE_END (1ULL << 32)

enum gdrdrv_mapping_type { GDRDRV_MAPPING_NONE, GDRDRV_MAPPING_WC, GDRDRV_MAPPING_CACHED, GDRDRV_MAPPING_DEVICE };

struct gdrdrv_file {
	struct kref ref;
	/* The process that opened it: with the start time, because its number may be reused after its end. */
	pid_t owner_tgid;
	u64 owner_start_time;
	struct address_space mapping;
	struct mutex lock;
	struct rb_root regions;	/* under lock: struct gdrdrv_region by handle */
	u64 next_handle;	/* under lock: where the search for a free range starts */
};

struct gdrdrv_region {
	struct kref ref;
	struct gdrdrv_file *file;	/* referenced */
	struct rb_node node;		/* under file->lock */
	bool linked;			/* under file->lock: in the tree */

	/* Constant once the region is in the tree. */
	u64 handle;			/* set under lock, with has_handle */
	u64 va;				/* rounded down to a GPU page */
	u64 size_bytes;			/* rounded up to GPU pages */
	u64 offset_bytes;		/* of the address that was asked for, in its first GPU page */
	u64 host_pages;			/* page offsets that the handle stands for */
	u64 get_pages_cycles;
	u64 p2p_token;
	u32 va_space;
	u32 entries;
	u64 *physical;			/* of each GPU page */
	bool persistent;
	bool force_pcie;
	bool cacheable;

	struct rw_semaphore lock;
	/* Under lock. */
	bool has_handle;		/* has been in the tree */
	bool dead;			/* unpinned or revoked: faults end in SIGBUS */
	bool callback_ran;
	bool memtype_reserved;
	u32 requested_type;
	u32 type;			/* GDRDRV_MAPPING_NONE while not mapped */
	unsigned int mappings;
	struct nvidia_p2p_page_table *page_table;
};

/* main.c */
extern int gdrdrv_dbg_enabled;
extern int gdrdrv_info_enabled;
extern int gdrdrv_use_persistent_mapping;

#define gdrdrv_debug(fmt, ...)                                      \
	do {                                                        \
		if (gdrdrv_dbg_enabled)                             \
			printk(KERN_DEBUG pr_fmt(fmt), ##__VA_ARGS__); \
	} while (0)
#define gdrdrv_info(fmt, ...)                                      \
	do {                                                       \
		if (gdrdrv_info_enabled || gdrdrv_dbg_enabled)     \
			printk(KERN_INFO pr_fmt(fmt), ##__VA_ARGS__); \
	} while (0)

/* file.c */
extern const struct file_operations gdrdrv_fops;
bool gdrdrv_is_owner(const struct gdrdrv_file *file);
void gdrdrv_file_put(struct gdrdrv_file *file);

/* region.c */
/* Pins. The result has a reference, which the caller drops with gdrdrv_region_put. On failure, an ERR_PTR. */
struct gdrdrv_region *gdrdrv_pin(struct gdrdrv_file *file, const struct gdrdrv_pin_buffer *params, u32 flags);
/* Removes the region from its file and ends it. -EINVAL if that was already done. No locks held. */
int gdrdrv_unpin(struct gdrdrv_region *region);
void gdrdrv_unpin_all(struct gdrdrv_file *file);
/* The region with exactly this handle, referenced, or NULL. */
struct gdrdrv_region *gdrdrv_region_find(struct gdrdrv_file *file, u64 handle);
void gdrdrv_region_put(struct gdrdrv_region *region);

/* provider.c */
/* Fills page_table, physical, entries, persistent and cacheable. On an error nothing is held. No locks held. */
int gdrdrv_provider_get(struct gdrdrv_region *region, u32 flags);
/* Ends the mappings, and returns the pages unless the callback already has. The region is no longer in the tree, or never
 * was. No locks held. */
void gdrdrv_provider_put(struct gdrdrv_region *region);
bool gdrdrv_provider_is_persistent(void);
int gdrdrv_pages_refcount(void);

/* mmap.c */
int gdrdrv_mmap(struct file *filp, struct vm_area_struct *vma);
int gdrdrv_request_type(struct gdrdrv_region *region, u32 type);
/* Marks the region dead, and removes its PTEs and memory types. May be called repeatedly and concurrently. No locks held. */
void gdrdrv_end_mappings(struct gdrdrv_region *region);
/* Registers the region as write-combining with the CPU's memory type tracking. False if it is registered otherwise. */
bool gdrdrv_memtype_reserve(const struct gdrdrv_region *region);
void gdrdrv_memtype_release(const struct gdrdrv_region *region);
void gdrdrv_mmap_init(void);

#endif
