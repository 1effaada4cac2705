/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Buffers: a range of host or GPU memory, as every call of Peerlane takes it (copies, messages, the store).
 * C++: <peerlane/buffer.hpp>.
 *
 * A buffer is a value of 24 bytes that names memory and owns nothing. Make one with an inline function below and pass it by
 * value. The memory must live as long as the call, or the operation that the call began, uses it.
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

/** What lies at a buffer's address. */
enum peerlane_memory {
  PEERLANE_MEMORY_ANY = 0, /**< Each call asks the driver, unless the memory is registered. */
  PEERLANE_MEMORY_HOST = 1,
  PEERLANE_MEMORY_DEVICE = 2
};

/** A range of memory. All zero is an empty one. */
struct peerlane_buffer {
  uint64_t address;  /**< A pointer or a peerlane_device_ptr_t, as a number. */
  size_t size_bytes; /**< 0: empty; the address is then not read. */
  uint32_t memory;   /**< enum peerlane_memory. */
  uint32_t reserved; /**< 0. */
};

/** @brief Host memory, pinned or not. A call that only reads the buffer leaves the memory unchanged. */
static inline struct peerlane_buffer peerlane_host_buffer(const void* pointer, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = (uint64_t)(uintptr_t)pointer;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_HOST;
  buffer.reserved = 0;
  return buffer;
}

/** @brief Memory of any GPU, context and allocator. Managed memory is refused where the buffer is used. */
static inline struct peerlane_buffer peerlane_device_buffer(peerlane_device_ptr_t device_ptr, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = device_ptr;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_DEVICE;
  buffer.reserved = 0;
  return buffer;
}

/** @brief Memory of a kind that the caller does not know. Say it where you do: a call then asks nobody. */
static inline struct peerlane_buffer peerlane_any_buffer(const void* pointer, size_t size_bytes) {
  struct peerlane_buffer buffer;
  buffer.address = (uint64_t)(uintptr_t)pointer;
  buffer.size_bytes = size_bytes;
  buffer.memory = PEERLANE_MEMORY_ANY;
  buffer.reserved = 0;
  return buffer;
}

/**
 * @brief Asks the driver once what lies at an address; the buffer then says it to every call. In libpeerlane.
 *
 * @param pointer     host pointer or device address.
 * @param size_bytes  length of the range.
 * @param buffer      written on success: a host or a device buffer.
 * @return 0; EINVAL: `buffer` is null, or the range leaves its allocation of GPU memory. Where no driver answers, the memory
 *         is the host's.
 */
int peerlane_detect_buffer(const void* pointer, size_t size_bytes, struct peerlane_buffer* buffer);

#ifdef __cplusplus
}
#endif
#endif
