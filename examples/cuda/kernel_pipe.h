/* SPDX-License-Identifier: Apache-2.0
 * What kernel_pipe.cu and kernel_pipe.cpp agree on: the memory of each end, as its window shows it to the other process. */
#ifndef EXAMPLE_KERNEL_PIPE_H
#define EXAMPLE_KERNEL_PIPE_H

enum {
  kMessages = 40,
  kMessageBytes = 8192,
  kSlots = 4,                       /* messages under way */
  kWordAt = kSlots * kMessageBytes, /* the consumer's: messages that are here; the producer's: messages that were read */
  kEndBytes = 65536                 /* a window for another process is of whole 64 KiB, and begins at a multiple of it */
};

#endif
