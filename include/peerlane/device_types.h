/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the host makes and kernels take by value: <peerlane/device.h> fills these structs, <peerlane/device.cuh> reads them.
 * Includes nothing, so NVRTC takes it. Their fields may change between releases: compile both sides with one release.
 */
#ifndef PEERLANE_DEVICE_TYPES_H
#define PEERLANE_DEVICE_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/** A queue of one copy engine that kernels post into. Any number of threads, blocks and kernels of its GPU may share it. */
struct peerlane_device_ring {
  unsigned long long control;    /**< Kernels' address of the words below. */
  unsigned long long segments;   /**< Kernels' address of the commands. */
  unsigned long long completed;  /**< The engine's address of the word that counts what is done. */
  unsigned long long spare;      /**< The engine's address of 64 bytes that nobody reads. */
  unsigned long long timeout_ns; /**< Longest wait inside one call. */
  unsigned count;                /**< Segments, a power of two. */
  unsigned by_proxy;             /**< 1: no copy engine takes them; a thread of the host hands them to CUDA. */
};

/** Memory that rings of one GPU reach. */
struct peerlane_device_window {
  unsigned long long address;    /**< Kernels' address of the first byte; 0: kernels cannot reach it themselves. */
  unsigned long long dma;        /**< The engine's. */
  unsigned long long size_bytes; /**< Puts and gets outside of it are refused. */
  unsigned is_outside;           /**< Not 0: not in the memory of the rings' GPU, so what kernels write there takes longer.
                                      PEERLANE_DEVICE_ON_PEER: in another GPU's, and puts there are always flushed.
                                      PEERLANE_DEVICE_ON_REMOTE: in another process, perhaps of another host. */
  unsigned reserved;
};

/** `is_outside` of a window; 0: in the memory of the rings' GPU. */
enum peerlane_device_place {
  PEERLANE_DEVICE_ON_HOST = 1,  /**< Host memory. */
  PEERLANE_DEVICE_ON_PEER = 2,  /**< Another GPU's. */
  PEERLANE_DEVICE_ON_REMOTE = 3 /**< Another process's, which messages reach: for rings with by_proxy. */
};

/* `dma` of remote windows: from here on, where no memory lies. */
#define PEERLANE_DEVICE_REMOTE_BASE 0x4000000000000000ull

/** What device functions answer instead of a ticket: errno values, negated. */
enum peerlane_device_error {
  PEERLANE_DEVICE_EIO = -5,          /**< The GPU has ended the ring: peerlane_device_ring_state() says why. */
  PEERLANE_DEVICE_EBUSY = -16,       /**< Others are posting into the ring that one thread wants for itself. */
  PEERLANE_DEVICE_EINVAL = -22,      /**< More than 2 GiB in one call, a word that is not aligned, or a remote window and a
                                          ring of a copy engine's, or two remote windows. */
  PEERLANE_DEVICE_ERANGE = -34,      /**< Not inside the window. */
  PEERLANE_DEVICE_ECONNRESET = -104, /**< The process of a remote window is gone. This ring has ended. */
  PEERLANE_DEVICE_ESHUTDOWN = -108,  /**< The host has closed the ring. */
  PEERLANE_DEVICE_ETIMEDOUT = -110   /**< Not within the ring's time-out. */
};

/** How a put or get behaves, to be combined. */
enum peerlane_device_flags {
  PEERLANE_DEVICE_DEFAULT = 0,
  /** It begins when everything posted before it has ended: it reads what that has written. */
  PEERLANE_DEVICE_ORDERED = 1,
  /** Its ticket stands for visible bytes, and not only for a source that may be used again. A signal implies it. */
  PEERLANE_DEVICE_FLUSHED = 2,
  /** A signal without it: the word may be seen before the bytes. Measure before you use it. */
  PEERLANE_DEVICE_UNFLUSHED = 4
};

/* The ring's control words: offsets. Lines of their own, since kernels, the engine and the host write them. */
enum {
  PEERLANE_DEVICE_TICKETS_AT = 0,     /* u64: taken by kernels */
  PEERLANE_DEVICE_COMPLETED_AT = 256, /* u32: segments that it has executed; behind it, u32: the ring's error */
  PEERLANE_DEVICE_SPARE_AT = 384,     /* 64 bytes */
  PEERLANE_DEVICE_CONTROL_BYTES = 4096,
  PEERLANE_DEVICE_SEGMENT_BYTES = 128,
  PEERLANE_DEVICE_SEGMENT_WORDS = 17, /* that the engine executes */
  PEERLANE_DEVICE_MARK_AT = 124       /* u32 of a segment: the ticket of whom has written it; the engine waits for it */
};

#ifdef __cplusplus
}
#endif
#endif
