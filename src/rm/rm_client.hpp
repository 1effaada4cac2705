// SPDX-License-Identifier: Apache-2.0
// A client of the NVIDIA resource manager (RM): our own root object on /dev/nvidiactl, below it one device and
// subdevice per GPU, duplicates of memory objects that CUDA made in this process, and CPU mappings of them.
//
//   /dev/nvidiactl fd -- root client -- device -- duplicate of CUDA's memory object
//                                          \---- subdevice (the mapping's "device")      /dev/nvidiaN fd -> mmap
//
// A duplicate keeps the memory alive after cuMemFree. Everything ends with the nvidiactl descriptor, so a killed
// process leaves nothing behind. The RM refuses a forked child that uses its parent's client (status 0x23).
// Thread-safe: handles come from an atomic counter, the device list has a lock, and the RM serialises the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "os/unique_fd.hpp"
#include "rm/rm_abi.hpp"

namespace pl::rm {

struct pci_address {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  bool operator==(const pci_address&) const = default;
};

// "0000:0a:00.0" (any case, function optional). EINVAL otherwise.
result<pci_address> parse_pci_address(const std::string& text);

struct gpu {
  pci_address pci;
  std::uint32_t gpu_id = 0;
  std::uint32_t device_instance = 0;
  std::uint32_t subdevice_instance = 0;
  unsigned minor = 0;  // /dev/nvidia<minor>
  handle device = 0;
  handle subdevice = 0;
  unique_fd node = {};  // open as long as the objects: the driver refuses them if nobody has one open
};

// What replaces a mapping at its addresses after it is unmapped.
enum class unmap_policy { hole, reservation, faulting };

struct cpu_mapping {
  void* address = nullptr;
  std::size_t size_bytes = 0;
  std::uint64_t linear_address = 0;  // the RM's name of the mapping, for unmap
  handle memory = 0;
  const gpu* owner = nullptr;
};

class client {
 public:
  // Opens /dev/nvidiactl and creates the root client. ENOENT, EACCES or ENODEV with advice. `io` must outlive the
  // client.
  static result<std::unique_ptr<client>> open(device_io& io);
  ~client();
  client(const client&) = delete;
  client& operator=(const client&) = delete;

  // The GPU at this PCI address, whose device objects are created on first use; valid as long as the client. ENODEV if
  // the RM has no such GPU attached, EACCES if /dev/nvidia<minor> may not be opened.
  result<const gpu*> find_gpu(const pci_address& pci);

  // A share of another client's memory object in this process. ENOENT if it no longer exists.
  result<handle> duplicate(const gpu& owner, handle source_client, handle source_object);
  // A share of an object exported to a descriptor (cuMemExportToShareableHandle). The caller keeps the descriptor.
  result<handle> import(const gpu& owner, int exported_fd);
  // A new descriptor that represents an object, for import by other processes. It keeps the memory alive.
  result<unique_fd> export_object(const gpu& owner, handle object);
  void release(const gpu& owner, handle object) noexcept;

  // Maps [offset, offset + length) of the object, both multiples of the host page, at `fixed_address` (MAP_FIXED over
  // the caller's reservation) or anywhere if null; forked children do not inherit the mapping. ENOMEM: BAR1 is full.
  result<cpu_mapping> map(const gpu& owner, handle memory, std::uint64_t offset, std::size_t length, void* fixed_address);
  // `left`: nothing, a PROT_NONE reservation for the caller, or a range that raises SIGBUS (faulting_range.hpp).
  void unmap(const cpu_mapping& mapping, unmap_policy left) noexcept;

  device_io& io() const noexcept { return io_; }

  // Objects created and not yet released, including mappings; tests compare it with its initial value.
  int live_objects() const noexcept { return live_objects_.load(); }

 private:
  friend class channel_objects;  // creates objects for DMA channels in the same client
  client(device_io& io, unique_fd control) : io_(io), control_(std::move(control)) {}
  int call(int fd, unsigned escape, void* params, std::size_t size_bytes);
  status alloc(handle parent, handle object, std::uint32_t object_class, void* params, std::size_t bytes,
               const char* operation);
  status control(handle object, std::uint32_t command, void* params, std::size_t bytes, const char* operation);
  status make_device_objects(gpu& target);
  result<unique_fd> open_device_node(const gpu& target);
  handle next_handle() noexcept { return next_handle_.fetch_add(1); }

  device_io& io_;
  unique_fd control_;
  handle root_ = 0;
  std::atomic<handle> next_handle_{0x9e110001};  // arbitrary, apart from the RM's own generator; one namespace per client
  std::atomic<int> live_objects_{0};
  std::mutex gpus_mutex_;
  std::vector<std::unique_ptr<gpu>> gpus_;
};

// Version of the loaded kernel module, such as "580.159.04": from the RM itself, otherwise sysfs or procfs. ENOENT if
// there is no driver.
result<std::string> driver_version(device_io& io);

enum class abi_knowledge { measured, read, unknown };
// Whether this release's layouts are known: measured on hardware, read in its published sources, or neither.
abi_knowledge abi_of(const std::string& driver_version);

}  // namespace pl::rm
