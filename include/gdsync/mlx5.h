/* SPDX-License-Identifier: Apache-2.0
 * Included by <gdsync.h>: what a kernel needs to do an operation by itself. */
#ifndef GDSYNC_MLX5_H
#define GDSYNC_MLX5_H

#include <gdsync/core.h>

GDS_BEGIN_DECLS

typedef struct gds_mlx5_dword_wait_info {
  uint32_t* ptr; /* a device address */
  uint32_t value;
} gds_mlx5_dword_wait_info_t;
/* Where a kernel finds the word, and the value as given. flags: gds_memory_type_t. */
int gds_mlx5_get_dword_wait_info(uint32_t* ptr, uint32_t value, int flags, gds_mlx5_dword_wait_info_t* mlx5_info);

typedef struct gds_mlx5_send_info {
  unsigned membar : 1;
  unsigned membar_full : 1;
  uint32_t* dbrec_ptr;
  uint32_t dbrec_value;
  uint64_t* db_ptr;
  uint64_t db_value;
} gds_mlx5_send_info_t;
typedef struct gds_mlx5_wait_info {
  gds_wait_cond_flag_t cond;
  uint32_t* cqe_ptr;
  uint32_t cqe_value;
  uint32_t* flag_ptr;
  uint32_t flag_value;
} gds_mlx5_wait_info_t;
/* Of a soft queue pair: one word is its doorbell, and its completions are counts. */
int gds_mlx5_get_send_info(int count, const gds_send_request_t* requests, gds_mlx5_send_info_t* mlx5_infos);
int gds_mlx5_get_wait_info(int count, const gds_wait_request_t* requests, gds_mlx5_wait_info_t* mlx5_infos);

GDS_END_DECLS
#endif
