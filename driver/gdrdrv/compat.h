/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Differences between Linux 5.10 and 6.18. All version checks of the driver are here. 6.1 and 6.12 are tested.
 */
#ifndef GDRDRV_COMPAT_H
#define GDRDRV_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 10, 0)
#error "gdrdrv needs Linux 5.10 or newer"
#endif

/* 6.3 made vm_flags read-only and gave it setters. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}
#endif

/* 5.11 renamed the hook that can refuse to split a mapping. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 11, 0)
#define GDRDRV_MAY_SPLIT split
#else
#define GDRDRV_MAY_SPLIT may_split
#endif

/* Only 5.11 and 5.12 pass the flags to the mremap hook. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 11, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(5, 13, 0)
#define GDRDRV_MREMAP_ARGUMENTS struct vm_area_struct *vma
#else
#define GDRDRV_MREMAP_ARGUMENTS struct vm_area_struct *vma, unsigned long flags
#endif

#endif
