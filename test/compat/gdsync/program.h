/* SPDX-License-Identifier: Apache-2.0
 * What the test programs of libgdsync share: the driver's calls that they make, and a check that ends the program. */
#pragma once

#include <gdsync.h>
#include <stdio.h>
#include <stdlib.h>

#include "test/abi/c_check.h"

#ifndef GDS_HAS_CUDA_HEADER /* of the driver, so that no toolkit is needed */
typedef struct CUctx_st* CUcontext;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext* context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuStreamCreate(CUstream* stream, unsigned flags);
int cuStreamSynchronize(CUstream stream);
int cuStreamQuery(CUstream stream);
#endif
