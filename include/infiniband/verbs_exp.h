/* SPDX-License-Identifier: Apache-2.0
 * For programs that include the experimental verbs of an adapter's former drivers because libgdsync's headers did: those
 * names of them that such programs use for Peerlane's queue pairs (gdsync/soft.h). Included by <gdsync.h>. Not an interface
 * to adapters. Needs <infiniband/verbs.h>. */
#ifndef PEERLANE_INFINIBAND_VERBS_EXP_H
#define PEERLANE_INFINIBAND_VERBS_EXP_H

#include <infiniband/verbs.h>

/* Those drivers' headers had these, and programs use them. */
#ifndef BEGIN_C_DECLS
#ifdef __cplusplus
#define BEGIN_C_DECLS extern "C" {
#define END_C_DECLS }
#else
#define BEGIN_C_DECLS
#define END_C_DECLS
#endif
#endif

#ifdef __GNUC__
#define PEERLANE_UNNAMED __extension__ /* C before 2011 has no unnamed members */
#else
#define PEERLANE_UNNAMED
#endif

BEGIN_C_DECLS

/* The same values as verbs' own. Queue pairs of software take IBV_EXP_WR_SEND alone. */
enum ibv_exp_wr_opcode {
  IBV_EXP_WR_RDMA_WRITE = IBV_WR_RDMA_WRITE,
  IBV_EXP_WR_RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM,
  IBV_EXP_WR_SEND = IBV_WR_SEND,
  IBV_EXP_WR_SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM,
  IBV_EXP_WR_RDMA_READ = IBV_WR_RDMA_READ
};
enum ibv_exp_send_flags {
  IBV_EXP_SEND_FENCE = IBV_SEND_FENCE,
  IBV_EXP_SEND_SIGNALED = IBV_SEND_SIGNALED,
  IBV_EXP_SEND_SOLICITED = IBV_SEND_SOLICITED,
  IBV_EXP_SEND_INLINE = IBV_SEND_INLINE
};

/* Up to `wr` laid out as struct ibv_send_wr, under both names of a member. Clear it before you fill it in. */
struct ibv_exp_send_wr {
  uint64_t wr_id;
  struct ibv_exp_send_wr* next;
  struct ibv_sge* sg_list;
  int num_sge;
  PEERLANE_UNNAMED union {
    enum ibv_exp_wr_opcode exp_opcode;
    enum ibv_wr_opcode opcode;
  };
  PEERLANE_UNNAMED union {
    unsigned int exp_send_flags; /* enum ibv_exp_send_flags */
    unsigned int send_flags;
  };
  union {
    uint32_t imm_data; /* big-endian */
    uint32_t invalidate_rkey;
  } ex;
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    struct {
      uint64_t remote_addr;
      uint64_t compare_add;
      uint64_t swap;
      uint32_t rkey;
    } atomic;
    struct {
      struct ibv_ah* ah;
      uint32_t remote_qpn;
      uint32_t remote_qkey;
    } ud;
  } wr;
  uint32_t comp_mask; /* 0 */
};

END_C_DECLS
#endif
