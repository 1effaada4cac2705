// SPDX-License-Identifier: Apache-2.0
// One GPU for one tool: context, memory, pinned host memory, and the stock tools' lines about it.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_handle.hpp"
#include "cuda/driver_table.hpp"
#include "tools/common/options.hpp"

namespace pl::tools {

// Initialised CUDA with the primary context of one device current on this thread. Everything throws tool_failure.
class gpu_session {
 public:
  // Chooses real or simulated (and prints the header of the latter), initialises CUDA, selects device `ordinal`.
  // `announce` prints the "GPU id:" and "selecting device" lines.
  explicit gpu_session(int ordinal, bool announce = true);
  ~gpu_session();
  gpu_session(const gpu_session&) = delete;
  gpu_session& operator=(const gpu_session&) = delete;

  const cu::driver_table& cuda() const { return *cuda_; }
  cu::device_t device() const { return device_; }
  int ordinal() const { return ordinal_; }
  bool simulated() const { return cuda_->is_simulated; }
  std::string bus_id() const;  // "0000:fe:00.0"

  // Value of a device attribute, 0 if the driver does not know it.
  int attribute(int attribute_id) const;
  // Makes the context current on another thread.
  void make_current() const;
  void synchronize() const;

  // Throws "<what> failed: CUDA_ERROR_..." unless `code` is success.
  void check(cu::result_t code, const std::string& description) const;

 private:
  const cu::driver_table* cuda_ = nullptr;
  int ordinal_ = 0;
  cu::device_t device_ = 0;
  cu::context_t context_ = nullptr;
};

// Prints "GPU id:N; name: X; Bus id: dddd:bb:dd" for every GPU, as the stock tools do.
void print_gpu_lines(const cu::driver_table& cuda);

// Device memory aligned to the 64 KiB granule of pins, size rounded up to it, SYNC_MEMOPS set. Freed at the end of life.
class device_memory {
 public:
  device_memory(const gpu_session& gpu, std::uint64_t size_bytes, alloc_kind kind = alloc_kind::cu_mem_alloc);
  ~device_memory() { free(); }
  device_memory(device_memory&& other) noexcept;
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  cu::device_ptr get() const { return aligned_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  void free();

 private:
  void allocate_pieces();
  const gpu_session* gpu_;
  alloc_kind kind_;
  std::uint64_t size_bytes_;
  cu::device_ptr base_ = 0;
  cu::device_ptr aligned_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  cu::physical_t physical_ = 0;
};

// Page-locked host memory that the GPU can address.
class host_memory {
 public:
  host_memory(const gpu_session& gpu, std::uint64_t size_bytes);
  ~host_memory();
  host_memory(const host_memory&) = delete;
  host_memory& operator=(const host_memory&) = delete;

  void* data() const { return data_; }
  unsigned char* bytes() const { return static_cast<unsigned char*>(data_); }
  cu::device_ptr device_address() const { return device_address_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  const gpu_session& gpu_;
  std::uint64_t size_bytes_;
  void* data_ = nullptr;
  cu::device_ptr device_address_ = 0;
};

class gpu_stream {
 public:
  explicit gpu_stream(const gpu_session& gpu);
  ~gpu_stream();
  gpu_stream(const gpu_stream&) = delete;
  gpu_stream& operator=(const gpu_stream&) = delete;
  cu::stream_t get() const { return stream_; }

 private:
  const gpu_session& gpu_;
  cu::stream_t stream_ = nullptr;
};

}  // namespace pl::tools
