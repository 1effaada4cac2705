// SPDX-License-Identifier: Apache-2.0
// A GPU address space for the DMA channels of this process. Memory must be bound to it before a copy engine can access it:
// memory of this GPU (allocated by CUDA, another process or Peerlane), of the host, and of other GPUs that this one reaches
// by NVLink or PCIe. There is one address space for each GPU, and any number of channels in it.
//
// Binding copies nothing and does not affect CUDA, which has its own addresses for the same memory. Bound memory stays
// alive: device memory that its owner has freed returns to the GPU when its region ends, and host pages stay pinned.
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

// Bound memory at a GPU address. The destructor unbinds it; destroy it after the last operation that uses it. Move-only.
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
  std::uint64_t offset() const { return offset_; }  // of the region in that object
  rm::channel_objects::memory_kind kind() const { return kind_; }
  const rm::gpu& owner() const { return *owner_; }  // whose memory it is; for host memory, the address space's GPU
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

  // Binding. `owner`: the GPU that has the memory, opened by the same client; null: this address space's GPU. EXDEV: this
  // GPU cannot access the memory of that one.
  //
  // Binds bytes [offset, offset + length) of another client's memory object, such as CUDA's (rm::find_backing). Whole pages.
  result<region> bind_object(rm::handle source_client, rm::handle source_object, std::uint64_t offset, std::uint64_t length,
                             const rm::gpu* owner = nullptr);
  // Binds bytes of an object of our own client. The caller keeps the object alive while the region exists.
  result<region> bind_share(rm::handle share, std::uint64_t offset, std::uint64_t length, const rm::gpu* owner = nullptr);
  // The same, but takes ownership of the object, even if it fails.
  result<region> bind_import(rm::handle share, std::uint64_t offset, std::uint64_t length, const rm::gpu* owner = nullptr);
  // Prepares access to memory of `peer`; the first call does the work. EXDEV: this GPU's engines cannot access it.
  status reach(const rm::gpu& peer);
  // The copy engine to use for writes to peer GPUs (chosen for the first peer). Empty: all engines are equally good.
  std::optional<unsigned> peer_engine() const noexcept;
  // Pins and binds memory of this process; whole pages. EFAULT: it cannot be pinned.
  result<region> bind_host(void* address, std::size_t size_bytes);
  // GPU memory that Peerlane allocates.
  struct own_memory {
    region bound;
    rm::handle memory = 0;  // for mapping it into the CPU's address space; valid while `bound` exists
  };
  result<own_memory> make_device_memory(std::uint64_t size_bytes);

  // Maps the page with the doorbell, which all channels share, for the CPU. The caller unmaps it.
  result<rm::cpu_mapping> map_doorbell();

  rm::channel_objects& objects() { return objects_; }
  rm::handle handle() const { return space_; }

 private:
  friend class region;
  explicit address_space(rm::channel_objects objects) : objects_(std::move(objects)) {}
  result<region> map(rm::handle memory, std::uint64_t offset, std::uint64_t length, rm::channel_objects::memory_kind kind,
                     const rm::gpu* owner);
  // Takes ownership of `memory`, even if it fails.
  result<region> bind(rm::handle memory, std::uint64_t offset, std::uint64_t length, rm::channel_objects::memory_kind kind,
                      const rm::gpu* owner);

  rm::channel_objects objects_;
  std::mutex peers_mutex_;
  std::map<const rm::gpu*, result<rm::handle>> peers_;  // links to other GPUs, and refusals
  std::atomic<std::uint32_t> peer_engines_{0};          // mask
  rm::handle space_ = 0, virtual_memory_ = 0, doorbell_ = 0;
};

}  // namespace pl::dma
