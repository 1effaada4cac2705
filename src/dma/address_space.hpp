// SPDX-License-Identifier: Apache-2.0
// The GPU addresses that channels of this process use: memory of the GPU (CUDA's, another process's, our own), of the host,
// and of other GPUs that it reaches by NVLink or PCIe, bound where the GPU's copy engines reach it. One address space for
// each GPU; any number of channels.
//
// Binding does not copy and changes nothing for CUDA, which keeps its own addresses of the same memory. What is bound stays
// alive: device memory that its owner frees goes back to the GPU when its region ends, host pages are pinned until then.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rm/channel_objects.hpp"

namespace pl::dma {

class address_space;

// Memory at a GPU address. Ends when it is destroyed, which must be after the last operation on it. Not copied, moved only.
class region {
 public:
  region() = default;
  region(region&& other) noexcept { swap(other); }
  region& operator=(region&& other) noexcept {
    region(std::move(other)).swap(*this);
    return *this;
  }
  ~region();

  std::uint64_t address() const { return address_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  rm::handle memory() const { return memory_; }     // the resource manager's object
  std::uint64_t offset() const { return offset_; }  // of the region in it
  rm::channel_objects::memory_kind kind() const { return kind_; }
  const rm::gpu& owner() const { return *owner_; }  // the GPU whose memory it is; of host memory, the address space's
  const std::shared_ptr<address_space>& space() const { return space_; }
  explicit operator bool() const { return space_ != nullptr; }

 private:
  friend class address_space;
  void swap(region& other) noexcept;

  std::shared_ptr<address_space> space_;
  const rm::gpu* owner_ = nullptr;
  rm::handle memory_ = 0;
  bool is_owner_ = true;  // of memory_
  std::uint64_t address_ = 0, size_bytes_ = 0, offset_ = 0;
  rm::channel_objects::memory_kind kind_ = rm::channel_objects::memory_kind::device;
};

class address_space : public std::enable_shared_from_this<address_space> {
 public:
  // `owner` outlives the address space. Errors: those of rm::channel_objects::open.
  static result<std::shared_ptr<address_space>> open(rm::client& owner, const rm::gpu& target,
                                                     const std::string& driver_version);
  ~address_space();
  address_space(const address_space&) = delete;
  address_space& operator=(const address_space&) = delete;

  // `owner` of device memory: the GPU that it lies on, of the same client; null: the address space's own. EXDEV: this GPU
  // does not reach that one's memory.
  //
  // Bytes [offset, offset + length) of another client's memory object, as libcuda names it (rm::find_backing); whole pages.
  result<region> bind_object(rm::handle source_client, rm::handle source_object, std::uint64_t offset, std::uint64_t length,
                             const rm::gpu* owner = nullptr);
  // Bytes of an object of our own client, which its owner keeps alive while the region exists.
  result<region> bind_share(rm::handle share, std::uint64_t offset, std::uint64_t length, const rm::gpu* owner = nullptr);
  // The same, of an object that the region takes over, also when it fails.
  result<region> bind_import(rm::handle share, std::uint64_t offset, std::uint64_t length, const rm::gpu* owner = nullptr);
  // Whether this GPU's engines reach memory of `peer`: makes what they need for it, once. EXDEV: they do not.
  status reach(const rm::gpu& peer);
  // The copy engine to write to such GPUs by (the first's that was reached); nothing: none is better than others.
  std::optional<unsigned> peer_engine() const noexcept;
  // Memory of this process, whole pages: it is pinned. EFAULT: it cannot be.
  result<region> bind_host(void* address, std::size_t size_bytes);
  // GPU memory of our own.
  struct own_memory {
    region bound;
    rm::handle memory = 0;  // for mapping it for the CPU; lives as long as `bound`
  };
  result<own_memory> make_device_memory(std::uint64_t size_bytes);

  // The page whose doorbell all channels share, for the CPU; the caller unmaps it.
  result<rm::cpu_mapping> map_doorbell();

  rm::channel_objects& objects() { return objects_; }
  rm::handle handle() const { return space_; }

 private:
  friend class region;
  explicit address_space(rm::channel_objects objects) : objects_(std::move(objects)) {}
  result<region> map(rm::handle memory, std::uint64_t offset, std::uint64_t length, rm::channel_objects::memory_kind kind,
                     const rm::gpu* owner);
  // Takes `memory` over, also when it fails.
  result<region> bind(rm::handle memory, std::uint64_t offset, std::uint64_t length, rm::channel_objects::memory_kind kind,
                      const rm::gpu* owner);

  rm::channel_objects objects_;
  std::mutex peers_mutex_;
  std::map<const rm::gpu*, result<rm::handle>> peers_;  // links to other GPUs, and refusals
  std::atomic<std::uint32_t> peer_engines_{0};          // mask
  rm::handle space_ = 0, virtual_memory_ = 0, doorbell_ = 0;
};

}  // namespace pl::dma
