// SPDX-License-Identifier: Apache-2.0
// Memory that several processes of a node reach by DMA channels of their own, as the channels of one GPU see it.
//
//   host, own         pinned and bound for a GPU when a transfer first needs it there
//   device, own       bound when it is registered; for another GPU when a transfer first needs it there
//   device, imported  of another process, by descriptor; bound in the same way
//   host, foreign     of another process: its owner's channels move it, or the CPU through the kernel (process_vm_readv)
//
// Shared by the transfers that use it: memory that is deregistered meanwhile is released with the last of them.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "copy/gpu_queues.hpp"
#include "dma/shared_region.hpp"
#include "map/rm_space.hpp"

namespace pl::copy {

// A piece of GPU memory in one driver object, as messages between processes name it: by its owner's addresses.
struct shared_piece {
  std::uint64_t begin = 0, size_bytes = 0;
};

class dma_memory {
 public:
  ~dma_memory();
  dma_memory(const dma_memory&) = delete;
  dma_memory& operator=(const dma_memory&) = delete;
  enum class kind : std::uint8_t { host, device, foreign_host, out_of_reach };

  static std::shared_ptr<dma_memory> make_host(std::uint64_t address, std::uint64_t size_bytes);
  // EINVAL: not GPU memory of this process. ENOTSUP: no channels there.
  static result<std::shared_ptr<dma_memory>> make_device(gpu_table& gpus, std::uint64_t address, std::uint64_t size_bytes);
  // `regions` has one for each piece.
  static result<std::shared_ptr<dma_memory>> import(gpu_table& gpus, const std::vector<shared_piece>& pieces,
                                                    const std::vector<dma::shared_region>& regions);
  static std::shared_ptr<dma_memory> make_foreign(kind type, std::uint64_t address, std::uint64_t size_bytes,
                                                  std::uint64_t id);

  kind type() const noexcept { return type_; }
  std::uint64_t id() const noexcept { return id_; }  // in the process that owns it
  // NIXL: the agent from which it was loaded, by the name of its socket, which is unique for ever; empty: this agent.
  const std::string& owner() const noexcept { return owner_; }
  void set_owner(const std::string& socket) { owner_ = socket; }
  bool contains(std::uint64_t pointer, std::uint64_t size_bytes) const noexcept {
    return pointer >= address_ && size_bytes <= size_bytes_ && pointer - address_ <= size_bytes_ - size_bytes;
  }
  const std::shared_ptr<gpu_queues>& gpu() const noexcept { return gpu_; }  // of device memory

  // The owner's bytes [begin, begin + size_bytes), at `address` for the channels.
  struct extent {
    std::uint64_t begin = 0, size_bytes = 0, address = 0;
  };
  // The extent around `pointer`. ENOTSUP: not reachable from this GPU. EFAULT: host memory that cannot be pinned.
  result<extent> find(const std::shared_ptr<gpu_queues>& gpu, std::uint64_t pointer);

  // GPU memory mapped for stores by the CPU, valid as long as the memory. Null if BAR1 has no room for it, or if it
  // lies in two windows.
  std::byte* find_mapping(std::uint64_t pointer, std::uint64_t size_bytes);

  // For another process. Only for device memory of our own.
  result<std::vector<dma::shared_region>> share() const;
  std::vector<shared_piece> pieces() const;

 private:
  struct bound_piece {
    std::uint64_t begin = 0, size_bytes = 0;
    rm_placement source;  // outlives what is bound of it
    dma::region bound;
  };
  dma_memory(kind type, std::uint64_t address, std::uint64_t size_bytes);
  const bound_piece* find_piece(std::uint64_t pointer) const noexcept;
  result<extent> find_host(const std::shared_ptr<gpu_queues>& gpu, std::uint64_t pointer);
  result<extent> find_on_peer(const std::shared_ptr<gpu_queues>& gpu, const bound_piece& piece);
  void keep_alive(const std::shared_ptr<gpu_queues>& gpu);

  const kind type_;
  const std::uint64_t address_, size_bytes_;
  std::uint64_t id_;
  std::string owner_;  // set before other threads know the memory
  std::shared_ptr<gpu_queues> gpu_;
  std::vector<bound_piece> device_;  // in address order

  std::atomic<bool> mapping_failed_{false};
  std::mutex mutex_;
  std::map<std::pair<const bound_piece*, std::uint64_t>, rm::cpu_mapping> mappings_;  // by window of the driver's object
  std::vector<std::shared_ptr<gpu_queues>> other_gpus_;                               // outlive what is bound there
  std::map<std::pair<const gpu_queues*, std::uint64_t>, bound_piece> host_;           // by GPU and window
  std::map<std::pair<const gpu_queues*, const bound_piece*>, dma::region> on_peers_;  // for other GPUs' engines
};

}  // namespace pl::copy
