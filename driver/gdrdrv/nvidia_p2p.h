/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The part of the NVIDIA driver's peer-to-peer interface that gdrdrv calls, restated so that building needs no NVIDIA
 * package. Names, types and order of the members are those of the real header (kernel-open/nvidia/nv-p2p.h, drivers
 * 535 to 595), because the kernel's symbol versions are computed from them. With NVIDIA_SRC the build takes the real header
 * instead (Makefile), and provider.c asserts the layout of whichever was used.
 *
 * GDRDRV_NVIDIA_BRANCH: the driver's major version. 580 appended `flags` and made the table's version 2.0.
 */
#ifndef GDRDRV_NVIDIA_P2P_H
#define GDRDRV_NVIDIA_P2P_H

#ifdef GDRDRV_NVIDIA_HEADER
#include <nv-p2p.h>
#else

#include <linux/types.h>

#ifndef GDRDRV_NVIDIA_BRANCH
#define GDRDRV_NVIDIA_BRANCH 580
#endif

enum nvidia_p2p_page_size_type {
	NVIDIA_P2P_PAGE_SIZE_4KB = 0,
	NVIDIA_P2P_PAGE_SIZE_64KB,
	NVIDIA_P2P_PAGE_SIZE_128KB,
	NVIDIA_P2P_PAGE_SIZE_COUNT
};

typedef struct nvidia_p2p_page {
	uint64_t physical_address;
	union nvidia_p2p_request_registers {
		struct {
			uint32_t wreqmb_h;
			uint32_t rreqmb_h;
			uint32_t rreqmb_0;
			uint32_t reserved[3];
		} fermi;
	} registers;
} nvidia_p2p_page_t;

typedef struct nvidia_p2p_page_table {
	uint32_t version; /* major << 16 | minor */
	uint32_t page_size; /* enum nvidia_p2p_page_size_type */
	struct nvidia_p2p_page **pages;
	uint32_t entries;
	uint8_t *gpu_uuid;
#if GDRDRV_NVIDIA_BRANCH >= 580
	uint32_t flags;
#endif
} nvidia_p2p_page_table_t;

#if GDRDRV_NVIDIA_BRANCH >= 580
#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00020000
#define NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE 0x1
#else
#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00010002
#endif

#define NVIDIA_P2P_FLAGS_DEFAULT 0
#define NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING 1

/*
 * All of these take the driver's own lock and may sleep. The callback runs with that lock held while the memory is
 * freed, so it must not call put_pages. The table is freed when the callback returns; put_pages of such a table returns 0.
 */
int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table, void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space, uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table, uint32_t flags);
int nvidia_p2p_put_pages_persistent(uint64_t virtual_address, struct nvidia_p2p_page_table *page_table,
				    uint32_t flags);

#endif
#endif
