// SPDX-License-Identifier: Apache-2.0
// The resource manager's objects behind DMA channels, one call each: an address space of the GPU, memory in it, channel
// groups, channels, the doorbell. All of them are below a client's device and end with it.
//
//   device -- address space -- virtual memory      map_dma puts memory into it
//          \-- device memory, host memory
//          \-- group -- channel -- copy object
//   subdevice -- doorbell (a page of the GPU's registers)
//
// Nothing is sent to a driver whose layouts are unknown (channel_layout_of). Thread-safe, as the client is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rm/channel_abi.hpp"
#include "rm/rm_client.hpp"

namespace pl::rm {

class channel_objects {
 public:
  // ENOTSUP: the driver's layouts are unknown, the GPU has no supported class, or it is in an unsupported mode (MIG,
  // confidential computing).
  static result<channel_objects> open(client& owner, const gpu& target, const std::string& driver_version);

  result<handle> make_address_space();
  result<handle> make_virtual_memory(handle address_space);
  // Memory of the GPU, `size_bytes` a multiple of 64 KiB.
  result<handle> make_device_memory(std::uint64_t size_bytes);
  // Pages of this process, pinned until the object is released. EFAULT or EIO for memory that cannot be pinned:
  // mappings of files in the page cache, managed memory. `address` and `size_bytes` are multiples of the host page.
  result<handle> make_host_memory(void* address, std::size_t size_bytes);
  void release(handle object) noexcept;

  // Lets this GPU's engines access memory of `peer`, by NVLink or PCIe. The caller releases it after the last mapping.
  // EXDEV: the driver knows no path between the two.
  result<handle> make_peer_link(const gpu& peer);
  // Mask of this GPU's copy engines (COPY<bit>) that write to the peer at the link's full rate; 0: the driver names
  // none.
  std::uint32_t peer_engines(const gpu& peer) const noexcept;

  enum class memory_kind { device, host, peer };  // peer: memory of another GPU, through a link to it
  // Maps bytes [offset, offset + length) of a memory object at an address that the driver chooses.
  result<std::uint64_t> map_dma(handle virtual_memory, handle memory, std::uint64_t offset, std::uint64_t length,
                                memory_kind kind);
  // Unmaps everything that map_dma mapped at `address`.
  void unmap_dma(handle virtual_memory, handle memory, std::uint64_t address) noexcept;

  // Capabilities of COPY<number>. ENOTSUP if there is no such engine.
  result<std::uint8_t> copy_engine_capabilities(unsigned number);

  struct channel_handles {
    handle group = 0, channel = 0, copy = 0;
    std::uint32_t token = 0;  // the value to ring the doorbell with
  };
  struct channel_request {
    handle address_space = 0;
    unsigned engine = 0;             // COPY<engine>
    std::uint64_t ring_address = 0;  // address of the GPFIFO, in the address space
    std::uint32_t ring_entries = 0;
    handle user_words_memory = 0;
    std::uint64_t user_words_offset = 0;
    handle error_memory = 0;  // host memory that starts with the channel's notifications
  };
  // Creates a scheduled group of one channel. Releasing the group releases it.
  result<channel_handles> make_channel(const channel_request& request);
  // How long a group's work may hold its engine while others wait. The driver's default is a millisecond or more.
  status set_timeslice(handle group, std::uint64_t microseconds);

  // The address at which the channel faulted; reading clears it. Nothing if the driver does not report it.
  std::optional<std::uint64_t> fault_address(handle channel) const noexcept;

  // A descriptor that becomes readable when COPY<engine> interrupts, for any channel. Each waiter needs its own: the
  // first poll() that sees it readable clears it.
  struct event {
    unique_fd fd;
    handle object = 0;
  };
  result<event> make_event(unsigned engine);
  void release_event(event ended) noexcept;

  // The page with the doorbell that all channels of the GPU share; kDoorbellBytes, to be mapped for the CPU.
  result<handle> make_doorbell();

  std::uint32_t copy_class() const noexcept { return copy_class_; }
  client& owner() const noexcept { return *client_; }
  const gpu& device() const noexcept { return *gpu_; }

 private:
  channel_objects(client& owner, const gpu& target, const channel_layout& layout)
      : client_(&owner), gpu_(&target), layout_(&layout) {}
  status refuse_restrictions();
  status choose_classes();
  result<handle> make(handle parent, std::uint32_t object_class, void* params, std::size_t bytes, const char* purpose);

  client* client_;
  const gpu* gpu_;
  const channel_layout* layout_;
  std::uint32_t channel_class_ = 0, copy_class_ = 0, doorbell_class_ = 0;
};

}  // namespace pl::rm
