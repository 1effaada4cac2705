// SPDX-License-Identifier: Apache-2.0
// Device memory, also of other GPUs, and pinned host memory as DMA channels reach it. Memory is bound into the
// channels' address space at its first copy, kept between copies, and identified by the driver's ids. So memory that
// was freed and allocated again at the same address is never reached through the old binding.
//
// A binding keeps the memory allocated and its pages pinned. A background sweep removes bindings within 0.1 s after the
// application freed the memory.
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

  // Memory at `address` for channels, of `size_bytes`: at most what was requested, since the next bytes may lie in
  // other memory. Stays bound while the object lives.
  struct piece {
    std::uint64_t address = 0, size_bytes = 0;
    mapping_cache::hold device;
    std::shared_ptr<const void> host;
  };
  // `info` is a fresh result of cu::inspect_pointer for `pointer`. Errors: as mapping_cache::find.
  result<piece> find_device(const cu::pointer_info& info, std::uint64_t pointer, std::uint64_t size_bytes);
  // `info` is the result of inspect_host. ENOTSUP: CUDA gives the memory no id. EFAULT, ENOMEM: it cannot be bound.
  result<piece> find_host(const host_memory& info, std::uint64_t pointer, std::uint64_t size_bytes);
  // Finds host memory that is bound already, which takes one short driver call. The piece starts at the binding's first
  // address, which is stored in `begin`. Returns nothing if the memory is not bound, or was freed meanwhile.
  std::optional<piece> find_bound_host(std::uint64_t pointer, std::uint64_t& begin);
  // Whether find_host() of this address would bind nothing new.
  bool has_host(const host_memory& info, std::uint64_t pointer);
  // Removes the bindings that no copy uses.
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
  mapping_cache device_;                                         // its sweep checks the host bindings, so it must end first
};

}  // namespace pl::copy
