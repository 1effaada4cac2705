// SPDX-License-Identifier: Apache-2.0
// Device memory, of other GPUs too, and pinned host memory as DMA channels reach it: bound into the channels' address space
// at the first copy, kept between copies, found again by the driver's ids of the memory, so that what was freed and
// allocated anew at the same address is never reached through the old binding.
//
// What is bound keeps its memory from going back to the GPU and its pages pinned. A background sweep ends bindings within
// 0.1 s after the application freed the memory.
//
// Thread-safe. Belongs to one process, as its mapping cache does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "copy/host_memory.hpp"
#include "copy/mapping_cache.hpp"
#include "dma/address_space.hpp"
#include "map/rm_space.hpp"

namespace pl::copy {

class channel_memory {
 public:
  // `cuda` must outlive the object.
  channel_memory(const cu::driver_table& cuda, std::shared_ptr<rm_space> space,
                 std::shared_ptr<dma::address_space> addresses);
  ~channel_memory();
  channel_memory(const channel_memory&) = delete;
  channel_memory& operator=(const channel_memory&) = delete;

  // Memory at `address` of the channels for `size_bytes`, at most what was asked for: the next bytes may lie in other
  // memory. Bound while it lives.
  struct piece {
    std::uint64_t address = 0, size_bytes = 0;
    mapping_cache::hold device;
    std::shared_ptr<const void> host;
  };
  // `info` describes `pointer` (cu::inspect_pointer, just now). Errors as mapping_cache::find.
  result<piece> find_device(const cu::pointer_info& info, std::uint64_t pointer, std::uint64_t size_bytes);
  // `info` is inspect_host's of the memory. ENOTSUP: CUDA does not name it; EFAULT, ENOMEM: it cannot be bound.
  result<piece> find_host(const host_memory& info, std::uint64_t pointer, std::uint64_t size_bytes);
  // Host memory that is bound already, from the binding's first address on, which `begin` tells; one short question to the
  // driver. Nothing: it is not bound, or its memory was freed meanwhile.
  std::optional<piece> find_bound_host(std::uint64_t pointer, std::uint64_t& begin);
  // Whether find_host() of the address binds nothing.
  bool has_host(const host_memory& info, std::uint64_t pointer);
  // Ends the bindings that no copy uses.
  void trim();

 private:
  struct host_binding;
  result<std::shared_ptr<host_binding>> bind_host(const host_memory& info, std::uint64_t pointer);
  std::shared_ptr<host_binding> bound_host(std::uint64_t pointer);
  std::shared_ptr<host_binding> bound_host(const host_memory& info, std::uint64_t pointer);
  bool drop_freed_host_memory();

  const cu::driver_table& cuda_;
  std::shared_ptr<dma::address_space> addresses_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<host_binding>> host_;  // by first address
  mapping_cache device_;                                         // its sweep looks at the host's: it must end first
};

}  // namespace pl::copy
