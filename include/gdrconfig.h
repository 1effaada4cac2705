/* SPDX-License-Identifier: Apache-2.0
 * Architecture macros that programs written for GDRCopy test. */
#pragma once

#if defined(__x86_64__)
#define GDRAPI_X86 1
#elif defined(__powerpc__)
#define GDRAPI_POWER 1
#elif defined(__aarch64__)
#define GDRAPI_ARM64 1
#endif
#define GDRAPI_ARCH_KNOWN 1
