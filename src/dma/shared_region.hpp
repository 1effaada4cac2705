// SPDX-License-Identifier: Apache-2.0
// Shares memory with the channels of another process through a descriptor (SCM_RIGHTS): GPU memory, for which the other
// process needs no CUDA, and host memory in a sealed memfd.
//
//   owner                               peer (no CUDA needed)
//   export_region(region)
//   send_region(socket, shared)  -----> receive_region(socket)
//                                       import_region(space, shared)     GPU address of the same bytes
//
// Lifetime: GPU memory lives until its owner has freed it, every descriptor is closed, and every region of it has ended, in
// all processes. The death of a process ends its descriptors and regions. Host memory lives like any memfd.
//
// Trust: a descriptor of GPU memory gives access to the whole memory object of the driver, which may contain other
// allocations (allocations of CUDA's pools share an object). Send it only to processes that you trust. The receiver checks
// the message: it refuses a descriptor of something else or of another GPU, and a range outside of the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dma/address_space.hpp"
#include "os/unique_fd.hpp"
#include "rm/rm_client.hpp"

namespace pl::dma {

struct shared_region {
  enum class kind : std::uint32_t { device = 1, host = 2 };
  unique_fd fd;
  kind memory = kind::device;
  rm::pci_address gpu;           // of device memory
  std::uint64_t offset = 0;      // of the region in the memory of the descriptor
  std::uint64_t size_bytes = 0;  // whole pages
};

// Exports GPU memory as a new descriptor. ENOTSUP: it is host memory; use make_shared_host instead.
result<shared_region> export_region(const region& memory);
// Binds received memory. It may belong to another GPU than the address space. EXDEV: the GPU of the address space cannot
// access it. ENODEV, EACCES: its GPU is not visible to this process. EINVAL: no such range, or not a descriptor of GPU
// memory. ENOMEM. The caller keeps the descriptor and may close it afterwards.
result<region> import_region(address_space& space, const shared_region& shared);

// Host memory that several processes map, for bind_host in each. The destructor unmaps it; destroy its regions first.
class shared_host {
 public:
  shared_host() = default;
  shared_host(shared_host&& other) noexcept { swap(other); }
  shared_host& operator=(shared_host&& other) noexcept {
    shared_host(std::move(other)).swap(*this);
    return *this;
  }
  ~shared_host();

  // Creates zeroed memory; `size_bytes` is rounded up to pages.
  static result<shared_host> make(std::size_t size_bytes);
  // Maps memory that another process created. EPROTO: its size is not sealed, so the sender could truncate it. EINVAL.
  static result<shared_host> open(const shared_region& shared);
  // A new descriptor for the other process.
  result<shared_region> share() const;

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(shared_host& other) noexcept;

  unique_fd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Over a connected Unix socket (stream or packets). EPIPE: the other end has closed. EPROTO: the message is not a region.
// ETIMEDOUT. EAGAIN: nothing was sent, because it would block and `flags` has MSG_DONTWAIT.
status send_region(int socket, const shared_region& shared, int flags = 0);
result<shared_region> receive_region(int socket, int timeout_ms);

// Receives regions from a socket without blocking, for threads that also serve other sockets. Not thread-safe.
class region_reader {
 public:
  // Empty: the message is not complete yet. Errors as above; the connection is unusable after an error.
  result<std::optional<shared_region>> take(int socket);

 private:
  result<bool> take_piece(int socket);

  static constexpr std::size_t kMessageBytes = 40;
  std::array<std::byte, kMessageBytes> bytes_{};  // of a message, which may arrive in pieces on a stream
  std::size_t have_bytes_ = 0, descriptors_ = 0;
  unique_fd fd_;
  bool has_lost_descriptors_ = false;
};

}  // namespace pl::dma
