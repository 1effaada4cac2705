/* SPDX-License-Identifier: Apache-2.0
 * Included by <gdsync.h>: memory that the CPU and the GPU both reach. */
#ifndef GDSYNC_TOOLS_H
#define GDSYNC_TOOLS_H

#include <gdsync/platform.h>

GDS_BEGIN_DECLS

typedef struct gds_mem_desc {
  CUdeviceptr d_ptr; /* for the GPU */
  void* h_ptr;       /* for the CPU */
  void* bar_ptr;     /* GPU memory: the same as h_ptr; else NULL */
  int flags;         /* as given */
  size_t alloc_size; /* bytes */
  gdr_mh_t mh;       /* of this library: not for libgdrapi's calls */
} gds_mem_desc_t;

/* flags: GDS_MEMORY_GPU, memory of the current context's GPU, mapped for the CPU (write-combining on most machines: slow to
 * read), or GDS_MEMORY_HOST, pinned host memory. Its content is undefined. EINVAL: no bytes, or other flags; else the reason
 * why it cannot be allocated or mapped. */
int gds_alloc_mapped_memory(gds_mem_desc_t* desc, size_t size, int flags);
/* Clears *desc. EINVAL: it is none that lives. No descriptor that names it may be under way. */
int gds_free_mapped_memory(gds_mem_desc_t* desc);

GDS_END_DECLS
#endif
