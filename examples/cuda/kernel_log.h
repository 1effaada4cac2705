/* SPDX-License-Identifier: Apache-2.0
 * What kernel_log.cu writes and kernel_log.cpp reads. */
#ifndef EXAMPLE_KERNEL_LOG_H
#define EXAMPLE_KERNEL_LOG_H

enum { kTermsOfAStep = 1000, kSteps = 20 };

struct log_record {
  unsigned long long step;
  unsigned long long pi_times_1e9;
};

#endif
