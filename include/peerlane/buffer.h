/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Buffers: a range of host or GPU memory. Copies, messages and the store take memory in this form.
 * C++: <peerlane/buffer.hpp>.
 *
 * A buffer is a 24-byte value that refers to memory and does not own it. Make one with an inline function below and pass it
 * by value. The memory must stay valid until the call, or the operation that the call began, has ended.
 *
 * @code
 * struct peerlane_buffer words = peerlane_host_buffer(values, sizeof values);
 * struct peerlane_buffer weights = peerlane_device_buffer(device_ptr, size_bytes);
 * peerlane_copy(copier, weights, words);
 * peerlane_comm_send(comm, peer, weights, tag, PEERLANE_NO_LIMIT);
 * @endcode
 */
#ifndef PEERLANE_BUFFER_H
#define PEERLANE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An address in GPU memory: CUdeviceptr, or what cudaMalloc returned, as a number. */
typedef uint64_t peerlane_device_ptr_t;

/** The kind of memory at a buffer's address. */
enum peerlane_memory {
  PEERLANE_MEMORY_ANY = 0, /**< Not known: each call asks the driver, unless the memory is registered. */
  PEERLANE_MEMORY_HOST = 1,
  PEERLANE_MEMORY_DEVICE = 2
};

/** A range of memory. A buffer with all fields zero is empty. */
struct peerlane_buffer {
  uint64_t address;  /**< A pointer or a peerlane_device_ptr_t, as a number. */
  size_t size_bytes; /**< 0: empty; the address is then not read. */
  uint32_t memory;   /**< enum peerlane_memory. */
  uint32_t reserved; /**< Must be 0. */
};

/** @brief Makes a buffer of host memory, pinned or pageable. A call that only reads a buffer never changes its memory. */
static inline struct peerlane_buffer peerlane_host_buffer(const void* pointer, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = (uint64_t)(uintptr_t)pointer;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_HOST;
  buffer.reserved = 0;
  return buffer;
}

/**
 * @brief Makes a buffer of device memory of any GPU, context and allocator. Managed memory is not supported: the call that
 *        uses the buffer refuses it.
 */
static inline struct peerlane_buffer peerlane_device_buffer(peerlane_device_ptr_t device_ptr, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = device_ptr;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_DEVICE;
  buffer.reserved = 0;
  return buffer;
}

/**
 * @brief Makes a buffer of memory whose kind the caller does not know. Use the functions above if you know it: calls then do
 *        not have to ask the driver.
 */
static inline struct peerlane_buffer peerlane_any_buffer(const void* pointer, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = (uint64_t)(uintptr_t)pointer;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_ANY;
  buffer.reserved = 0;
  return buffer;
}

/**
 * @brief Asks the driver once for the kind of memory at an address and makes a buffer of that kind. Part of libpeerlane.
 *
 * @param pointer     host pointer or device address.
 * @param size_bytes  length of the range.
 * @param buffer      written on success: a host or a device buffer; a host buffer where there is no driver.
 * @return 0; EINVAL: `buffer` is null, or the range leaves its allocation of GPU memory.
 */
int peerlane_detect_buffer(const void* pointer, size_t size_bytes, struct peerlane_buffer* buffer);

#ifdef __cplusplus
}
#endif
#endif
