/* SPDX-License-Identifier: Apache-2.0
 * What <gdsync.h> needs of others: CUDA's and verbs' headers where they are installed, which a program may do without. */
#ifndef GDSYNC_PLATFORM_H
#define GDSYNC_PLATFORM_H

#include <gdrapi.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define GDS_HAS_CUDA_HEADER 1
#endif
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs_exp.h>
#endif
#endif

#ifndef GDS_HAS_CUDA_HEADER /* the two names that these headers need of it */
typedef struct CUstream_st* CUstream;
typedef unsigned long long CUdeviceptr;
#endif

#ifdef __cplusplus
#define GDS_BEGIN_DECLS extern "C" {
#define GDS_END_DECLS }
#else
#define GDS_BEGIN_DECLS
#define GDS_END_DECLS
#endif

#endif
