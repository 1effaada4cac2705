// SPDX-License-Identifier: Apache-2.0
// What the rm backend shares within a process: one resource manager client, the memory objects of which we hold a
// share, and their mapped parts. This is the pin cache: while any pin of an object exists, the next pin of the same
// object needs no call to libcuda or the kernel.
//
// Keys are CUDA's ids of physical blocks (CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID), which are unique for the life of a
// process, so memory that was freed and allocated again at the same address has another key. Nothing is kept after the
// last pin: a cached share would keep freed memory allocated. All methods are thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "map/bounded_call.hpp"
#include "map/device_range.hpp"
#include "map/mapping_proof.hpp"
#include "rm/rm_client.hpp"

namespace pl {

class rm_space;

// A share of one memory object. Extents are cut at multiples of 2 MiB of the object (BAR1's own granule for such
// memory), so that small allocations in one block share one mapping.
class rm_object {
 public:
  rm_object(std::shared_ptr<rm_space> space, const rm::gpu& gpu, unsigned long long block_id)
      : space_(std::move(space)), gpu_(gpu), block_id_(block_id) {}
  ~rm_object();
  // Takes over the share itself, to release it at the end. Called after the object exists, so that a lack of memory
  // leaks no share.
  void hold(rm::handle memory) noexcept { memory_ = memory; }
  rm::handle memory() const noexcept { return memory_; }
  const rm::gpu& gpu() const noexcept { return gpu_; }
  const std::shared_ptr<rm_space>& space() const noexcept { return space_; }
  rm_object(const rm_object&) = delete;
  rm_object& operator=(const rm_object&) = delete;

  // Device addresses at which libcuda itself named this object with offset 0: only there may the cache compute offsets.
  void confirm_at(std::uint64_t object_begin);
  bool confirmed_at(std::uint64_t object_begin);

  struct extent {
    std::uint64_t offset, length;
    rm::cpu_mapping mapping;
    int users;
  };
  struct lease {
    void* address = nullptr;  // CPU address of the requested byte
    extent* mapped = nullptr;
  };
  // Bytes [offset, offset + length), mapped until the lease is returned.
  result<lease> acquire(std::uint64_t offset, std::uint64_t length, std::uint64_t object_bytes);
  void release(const lease& held, rm::unmap_policy left) noexcept;

  // A mapping for this caller alone, at `address` (over a reservation) or, if null, anywhere.
  result<rm::cpu_mapping> map_own(std::uint64_t offset, std::uint64_t length, void* address);
  void unmap_own(const rm::cpu_mapping& mapping, rm::unmap_policy left) noexcept;

 private:
  std::shared_ptr<rm_space> space_;
  const rm::gpu& gpu_;
  rm::handle memory_ = 0;
  unsigned long long block_id_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<extent>> extents_;
  std::vector<std::uint64_t> confirmed_;
};

// Where a piece of a pin lies in its object.
struct rm_placement {
  std::shared_ptr<rm_object> object;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t object_bytes = 0;  // 0 if unknown
  bool is_guess = false;           // derived from an IPC handle's bytes: to be proved before anybody sees the mapping
};

class rm_space : public std::enable_shared_from_this<rm_space> {
 public:
  // The process's space for this `io`: created on first use, destroyed when the last user releases it. A forked child
  // gets its own.
  static result<std::shared_ptr<rm_space>> get(device_io& io);

  explicit rm_space(std::unique_ptr<rm::client> client) : client_(std::move(client)) {}
  rm::client& client() noexcept { return *client_; }

  // Objects behind the plan's pieces, from the cache or from libcuda; from the IPC handle if one is given and CUDA does
  // not report memory of another process.
  result<std::vector<rm_placement>> resolve(const cu::driver_table& cuda, const pin_plan& plan,
                                            const cu::ipc_mem_handle_t* ipc_handle = nullptr);
  // The same for a plan that one object covers completely. ENOTSUP if several do.
  result<rm_placement> resolve_one(const cu::driver_table& cuda, const pin_plan& plan);

  // Verifies this mapping method for the GPU on scratch memory: once, or each time with `again`. Threads that arrive
  // while a proof is running wait for that one. EIO if the mapping shows other memory. ETIMEDOUT if the GPU is busy:
  // the proof continues, and a later call may find it complete.
  status prove_way(const proof_context& context, const rm::gpu& gpu, bool again);
  void forget(unsigned long long block_id) noexcept;
  result<const rm::gpu*> gpu_of(const cu::driver_table& cuda, int device_ordinal);

 private:
  std::shared_ptr<rm_object> cached(unsigned long long block_id);
  // The cached share of that block, or a new one that `take_share` (a callable) obtains.
  template <class TakeShare>
  result<std::shared_ptr<rm_object>> find_or_share(const rm::gpu& gpu, unsigned long long block_id, TakeShare take_share);
  result<std::vector<rm_placement>> query_libcuda(const cu::driver_table& cuda, const pin_plan& plan, const rm::gpu& gpu);
  result<std::vector<rm_placement>> share_exported(const pin_plan& plan, const rm::gpu& gpu,
                                                   const cu::ipc_mem_handle_t& ipc_handle);
  result<std::vector<rm_placement>> import_vmm(const cu::driver_table& cuda, const pin_plan& plan, const rm::gpu& gpu);

  status map_scratch(const proof_context& context);

  std::unique_ptr<rm::client> client_;
  std::mutex mutex_;
  std::unordered_map<unsigned long long, std::weak_ptr<rm_object>> objects_;
  std::unordered_map<int, const rm::gpu*> gpus_;
  std::unordered_map<const rm::gpu*, std::shared_ptr<bounded_call>> proofs_;
};

}  // namespace pl
