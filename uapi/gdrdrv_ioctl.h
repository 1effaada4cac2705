/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
 *
 * Contract between the gdrdrv kernel driver (stock 2.0 to 2.6, and ours) and user space: ioctl numbers and structs.
 * Most numbers encode the size of a pointer (8) although the struct is larger: a quirk of the original that is ABI now.
 * mmap offset of a pin = handle << PAGE_SHIFT. Included by driver/ and by src/map; C and C++.
 */
#ifndef PEERLANE_GDRDRV_IOCTL_H
#define PEERLANE_GDRDRV_IOCTL_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint32_t __pl_u32;
typedef uint64_t __pl_u64;
#endif
#ifdef __KERNEL__
typedef __u32 __pl_u32;
typedef __u64 __pl_u64;
#endif

#define GDRDRV_VERSION_WORD(major, minor) (((major) << 16) | (minor))

#define GDRDRV_IOC_PIN_BUFFER 0xC028DA01u
#define GDRDRV_IOC_UNPIN_BUFFER 0xC008DA02u
#define GDRDRV_IOC_GET_CB_FLAG 0xC008DA03u
#define GDRDRV_IOC_GET_INFO 0xC008DA04u
#define GDRDRV_IOC_GET_INFO_V2 0xC008DA05u
#define GDRDRV_IOC_GET_ATTR 0xC008DA06u
#define GDRDRV_IOC_PIN_BUFFER_V2 0xC020DA07u
#define GDRDRV_IOC_REQ_MAPPING_TYPE 0xC008DA08u
#define GDRDRV_IOC_GET_VERSION 0xC008DAFFu

enum gdrdrv_attr { GDRDRV_ATTR_PERSISTENT = 1, GDRDRV_ATTR_FORCE_PCIE = 2 };
enum gdrdrv_pin_flag { GDRDRV_PIN_FORCE_PCIE = 1 };

struct gdrdrv_pin_buffer {
  __pl_u64 addr;
  __pl_u64 size;
  __pl_u64 p2p_token;
  __pl_u32 va_space;
  __pl_u32 pad;
  __pl_u64 handle; /* out */
};

struct gdrdrv_unpin_buffer {
  __pl_u64 handle;
};

struct gdrdrv_get_cb_flag {
  __pl_u64 handle;
  __pl_u32 flag; /* out */
  __pl_u32 pad;
};

struct gdrdrv_get_info { /* all out but handle */
  __pl_u64 handle;
  __pl_u64 va;
  __pl_u64 mapped_size;
  __pl_u32 page_size;
  __pl_u32 tsc_khz;
  __pl_u64 tm_cycles;
  __pl_u32 mapped;
  __pl_u32 wc_mapping;
};

struct gdrdrv_get_info_v2 { /* all out but handle */
  __pl_u64 handle;
  __pl_u64 va;
  __pl_u64 mapped_size;
  __pl_u32 page_size;
  __pl_u32 tsc_khz;
  __pl_u64 tm_cycles;
  __pl_u32 mapping_type;
  __pl_u32 pad;
};

struct gdrdrv_get_attr {
  __pl_u32 attr;
  __pl_u32 val; /* out */
};

struct gdrdrv_pin_buffer_v2 {
  __pl_u64 addr;
  __pl_u64 size;
  __pl_u32 flags;
  __pl_u32 pad;
  __pl_u64 handle; /* out */
};

struct gdrdrv_req_mapping_type {
  __pl_u64 handle;
  __pl_u32 mapping_type; /* 0 default, 1 WC, 2 caching, 3 device */
  __pl_u32 pad;
};

struct gdrdrv_get_version { /* all out */
  __pl_u32 gdrdrv_version;
  __pl_u32 minimum_gdr_api_version;
};

#endif
