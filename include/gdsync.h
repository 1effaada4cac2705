/* SPDX-License-Identifier: Apache-2.0
 *
 * Peerlane's libgdsync.so.1: the interface of libgdsync 2.2 without its adapter, driver patches and kernel modules. Programs
 * written to libgdsync's value operations and mapped memory compile and run; so do those with queue pairs, which are
 * software here and are opened and connected by <gdsync/soft.h> (docs/async-api.md).
 *
 * Conventions for all calls: 0, or a positive errno value; outputs are written on success only. Nothing ends the process.
 * Any thread, also at the same time; a CUDA context must be current. One line on stderr says why a call failed.
 */
#ifndef __GDSYNC_H__
#define __GDSYNC_H__

#include <gdsync/core.h>
#include <gdsync/mlx5.h>
#include <gdsync/tools.h>

#endif
