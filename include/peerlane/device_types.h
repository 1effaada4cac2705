/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Structs that the host creates and passes to kernels by value: <peerlane/device.h> fills them, <peerlane/device.cuh> reads
 * them. This header includes nothing, so that NVRTC can compile it. The fields may change between releases: compile both
 * sides with the same release.
 */
#ifndef PEERLANE_DEVICE_TYPES_H
#define PEERLANE_DEVICE_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/** A queue of one copy engine into which kernels post. All threads, blocks and kernels of its GPU may share it. */
struct peerlane_device_ring {
  unsigned long long control;    /**< Address, for kernels, of the control words below. */
  unsigned long long segments;   /**< Address, for kernels, of the segments (commands). */
  unsigned long long completed;  /**< Address, for the engine, of the word that counts completed segments. */
  unsigned long long spare;      /**< Address, for the engine, of 64 bytes that nobody reads. */
  unsigned long long timeout_ns; /**< Longest wait inside one call, in nanoseconds. */
  unsigned count;                /**< Number of segments, a power of two. */
  unsigned by_proxy;             /**< 1: a host thread executes the segments with CUDA; 0: a copy engine does. */
};

/** Memory that the rings of one GPU can access. */
struct peerlane_device_window {
  unsigned long long address; /**< Address of the first byte for kernels; 0: kernels cannot load from it or store to it. */
  unsigned long long dma;     /**< Address of the first byte for the engine. */
  unsigned long long size_bytes; /**< Size of the window. Puts and gets outside of it are refused. */
  unsigned is_outside;           /**< enum peerlane_device_place; 0: in the memory of the rings' GPU. */
  unsigned reserved;
};

/** Where a window lies, if not in the memory of the rings' GPU. Kernels' own writes to such memory take longer. */
enum peerlane_device_place {
  PEERLANE_DEVICE_ON_HOST = 1,  /**< In host memory. */
  PEERLANE_DEVICE_ON_PEER = 2,  /**< In the memory of another GPU. Puts there are always flushed. */
  PEERLANE_DEVICE_ON_REMOTE = 3 /**< In another process, perhaps on another host; only for rings with by_proxy. */
};

/* `dma` addresses of remote windows start here; there is no memory at these addresses. */
#define PEERLANE_DEVICE_REMOTE_BASE 0x4000000000000000ull

/** Errors that device functions return instead of a ticket: negated errno values. */
enum peerlane_device_error {
  PEERLANE_DEVICE_EIO = -5,          /**< The GPU has ended the ring: peerlane_device_get_ring_state() reports why. */
  PEERLANE_DEVICE_EBUSY = -16,       /**< Another thread is posting to the ring, so own() cannot take it. */
  PEERLANE_DEVICE_EINVAL = -22,      /**< More than 2 GiB in one call, a word that is not aligned, a remote window with a
                                          ring of a copy engine, or two remote windows. */
  PEERLANE_DEVICE_ERANGE = -34,      /**< The bytes leave the window. */
  PEERLANE_DEVICE_ECONNRESET = -104, /**< The process of a remote window has died. This ring has ended. */
  PEERLANE_DEVICE_ESHUTDOWN = -108,  /**< The host has closed the ring. */
  PEERLANE_DEVICE_ETIMEDOUT = -110   /**< Not done within the ring's timeout. */
};

/** Flags of a put or get; may be combined. */
enum peerlane_device_flags {
  PEERLANE_DEVICE_DEFAULT = 0,
  /** The transfer starts when all earlier ones have ended, and reads what they have written. */
  PEERLANE_DEVICE_ORDERED = 1,
  /** When the ticket is done, the bytes are visible. Without it, only the source may be reused. A signal implies it. */
  PEERLANE_DEVICE_FLUSHED = 2,
  /** For signals: the word may be visible before the bytes. Measure before you use it. */
  PEERLANE_DEVICE_UNFLUSHED = 4
};

/* Offsets of the ring's control words. They lie in separate lines, because kernels, the engine and the host write them. */
enum {
  PEERLANE_DEVICE_TICKETS_AT = 0,     /* u64: taken by kernels */
  PEERLANE_DEVICE_COMPLETED_AT = 256, /* u32: segments that the engine has executed, followed by u32: the ring's error */
  PEERLANE_DEVICE_SPARE_AT = 384,     /* 64 bytes */
  PEERLANE_DEVICE_CONTROL_BYTES = 4096,
  PEERLANE_DEVICE_SEGMENT_BYTES = 128,
  PEERLANE_DEVICE_SEGMENT_WORDS = 17, /* words that the engine executes */
  PEERLANE_DEVICE_MARK_AT = 124       /* u32 of a segment: its ticket, once it is written; the engine waits for it */
};

#ifdef __cplusplus
}
#endif
#endif
