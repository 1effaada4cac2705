// SPDX-License-Identifier: Apache-2.0
// Memory of one process under the channels of another, by a descriptor (SCM_RIGHTS): GPU memory, which the other process
// reaches without CUDA, and host memory of a sealed memfd.
//
//   owner                               peer (no CUDA needed)
//   export_region(region)
//   send_region(socket, shared)  -----> receive_region(socket)
//                                       import_region(space, shared)     GPU address of the same bytes
//
// Whose end matters: GPU memory lives until the owner has freed it, every descriptor is closed, and every region of it has
// ended, in whichever process; a process that dies ends its own. Host memory lives as a memfd does.
//
// Trust: a descriptor of GPU memory gives its receiver the whole of the driver's memory object, which may hold neighbours of
// the region (an allocation of CUDA's pools shares one). Give it to processes of your own. What is received is checked: a
// descriptor of something else, another GPU's, or a range outside the memory is refused.
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
  std::uint64_t offset = 0;      // of the region in what the descriptor stands for
  std::uint64_t size_bytes = 0;  // whole pages
};

// GPU memory. The descriptor is a new one. ENOTSUP: it is host memory, which must come from make_shared_host.
result<shared_region> export_region(const region& memory);
// At the other end, where it may be memory of another GPU than the address space's. EXDEV: that GPU's memory is not reached
// from here; ENODEV, EACCES: the GPU is not visible to this process; EINVAL: no such range, or no descriptor of GPU memory;
// ENOMEM. The descriptor stays the caller's and may be closed afterwards.
result<region> import_region(address_space& space, const shared_region& shared);

// Host memory that several processes have mapped, for bind_host in each. Unmapped when it is destroyed, which must be after
// the regions of it.
class shared_host {
 public:
  shared_host() = default;
  shared_host(shared_host&& other) noexcept { swap(other); }
  shared_host& operator=(shared_host&& other) noexcept {
    shared_host(std::move(other)).swap(*this);
    return *this;
  }
  ~shared_host();

  // Zeroed; `size_bytes` is rounded up to pages.
  static result<shared_host> make(std::size_t size_bytes);
  // What another process made. EPROTO: its size is not sealed, so the sender could take it away under us; EINVAL.
  static result<shared_host> open(const shared_region& shared);
  // For the other process.
  result<shared_region> share() const;

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(shared_host& other) noexcept;

  unique_fd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// By a connected Unix socket, stream or packets. EPIPE: the other end is gone; EPROTO: what came is no region; ETIMEDOUT;
// EAGAIN: nothing was sent, since that would have to wait (`flags` has MSG_DONTWAIT).
status send_region(int socket, const shared_region& shared, int flags = 0);
result<shared_region> receive_region(int socket, int timeout_ms);

// One region after the other from a socket, without waiting: for threads that serve others, too. Used by one thread.
class region_reader {
 public:
  // Nothing: the rest of it has not come yet. Errors as above; the connection is of no use behind one.
  result<std::optional<shared_region>> take(int socket);

 private:
  result<bool> take_piece(int socket);

  static constexpr std::size_t kMessageBytes = 40;
  std::array<std::byte, kMessageBytes> bytes_{};  // of a message, which a stream may bring in pieces
  std::size_t have_bytes_ = 0, descriptors_ = 0;
  unique_fd fd_;
  bool has_lost_descriptors_ = false;
};

}  // namespace pl::dma
