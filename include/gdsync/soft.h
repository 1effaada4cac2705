/* SPDX-License-Identifier: Apache-2.0
 * Not part of libgdsync: queue pairs without an adapter, between processes of one node (or of one process), for programs
 * that are written to its calls. Needs <infiniband/verbs.h>. What differs from an adapter's:
 *
 * - the verbs context and protection domain come from gds_soft_open(), and a pair is connected by gds_soft_connect() instead
 * of ibv_modify_qp(); a thread of this library is the adapter;
 * - memory needs no registration: sg_list names host memory, or GPU memory that a backend can map for the CPU; lkey is not
 * read;
 * - IBV_WR_SEND alone, up to 1 MiB; RC and UD behave alike (reliable, in order, to the connected pair);
 * - a message waits until its receiver has posted a receive; one that is longer than that completes with IBV_WC_LOC_LEN_ERR;
 * - memory that was unmapped before its message came completes with IBV_WC_LOC_PROT_ERR. Such a send reaches nobody.
 *
 * ibv_poll_cq(), ibv_post_send() and ibv_post_recv() of verbs.h work on such pairs; libibverbs need not be linked. */
#ifndef GDSYNC_SOFT_H
#define GDSYNC_SOFT_H

#include <gdsync/core.h>

GDS_BEGIN_DECLS

/* The process's own; never freed. ENOSYS: built without verbs' headers. */
int gds_soft_open(struct ibv_context** context, struct ibv_pd** pd);

/* What the peer needs to connect. Plain bytes, for processes of this node. */
typedef struct gds_soft_address {
  uint64_t words[8];
} gds_soft_address_t;
int gds_soft_get_address(struct gds_qp* qp, gds_soft_address_t* address);
/* Before anything is sent; both ends do it, in any order. A pair may be connected to itself. EINVAL: no address, or
 * connected already. ENOTSUP: the peer's memory cannot be shared: another node, or another container. */
int gds_soft_connect(struct gds_qp* qp, const gds_soft_address_t* address);

GDS_END_DECLS
#endif
