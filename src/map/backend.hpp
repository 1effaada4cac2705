// SPDX-License-Identifier: Apache-2.0
// One interface for the methods that map GPU memory into the CPU's address space.
//
//   gdrdrv   the kernel module of GDRCopy (or ours): ioctl + mmap on /dev/gdrdrv
//   dmabuf   mmap of the dma-buf that CUDA exports (driver >= 13.3; the simulated GPU)
//   rm       the NVIDIA resource manager's own mapping through BAR1: no module, any recent driver
//
// Rules that the conformance suite (test/conformance) holds every backend to: a pin keeps the memory alive; mappings are not
// inherited over fork; nothing is left behind when any step fails; every refusal is an error value with a reason.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arch/mmio.hpp"
#include "base/checked_math.hpp"
#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "map/device_range.hpp"
#include "os/device_io.hpp"

namespace pl {

struct pin_request {
  address_range range;                           // as given by the user
  std::uint64_t granule_bytes = kHostPageBytes;  // 64 KiB for GDRCopy's calls
  range_rule rule = range_rule::exact;
  bool force_pcie = false;
  bool verify = false;  // verify the mapping by a nonce in the caller's memory (mapping_proof.hpp)
  // For memory of another process (cuIpcOpenMemHandle): its handle, valid for the call. Null for memory of this
  // process.
  const cu::ipc_mem_handle_t* ipc_handle = nullptr;
  bool is_sole = false;  // no other pin shares its CPU addresses, and they fault once it is unmapped
};

struct cpu_view {
  void* address = nullptr;  // CPU address of the pinned range's first byte
  std::size_t size_bytes = 0;
  arch::mapping_type type = arch::mapping_type::none;
};

// What happens to a mapping's addresses. After an explicit unmap they are free for other uses. A forgotten mapping leaves
// a range that raises SIGBUS (faulting_range.hpp), because pointers into it may still be in use.
enum class unmapping { by_request, forgotten };

class rm_object;  // rm_space.hpp

// A pinned range of device memory. Destroying it unpins (and unmaps). One thread at a time per object.
class pinned_memory {
 public:
  virtual ~pinned_memory() = default;
  pinned_memory(const pinned_memory&) = delete;
  pinned_memory& operator=(const pinned_memory&) = delete;

  const address_range& range() const noexcept { return range_; }
  int device_ordinal() const noexcept { return device_ordinal_; }
  const char* backend_name() const noexcept { return backend_name_; }

  // Maps the first `size_bytes` (a multiple of the host page, at most the range). `wanted`: none = the natural type.
  // EOPNOTSUPP if the platform does not have that type. Precondition: not mapped.
  virtual result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) = 0;
  virtual void unmap(const cpu_view& view, unmapping mode) noexcept = 0;
  // The resource manager's object that contains the whole pin, and the pin's offset in it. None for other backends, and
  // for pins over several objects.
  struct backing {
    std::shared_ptr<rm_object> object;
    std::uint64_t offset = 0;
  };
  virtual backing find_backing() const { return {}; }
  // An object that is destroyed with the pin, for code that keeps state about it. One thread at a time.
  const std::shared_ptr<void>& attachment() const noexcept { return attachment_; }
  void attach(std::shared_ptr<void> kept) noexcept { attachment_ = std::move(kept); }

  // 1 if the driver took the memory away under the pin (gdrdrv in callback mode).
  virtual result<bool> revoked() { return false; }

 protected:
  pinned_memory(const char* backend_name, address_range range, int device_ordinal)
      : backend_name_(backend_name), range_(range), device_ordinal_(device_ordinal) {}
  const char* backend_name_;
  address_range range_;
  int device_ordinal_;

 private:
  std::shared_ptr<void> attachment_;
};

class backend {
 public:
  virtual ~backend() = default;
  virtual const char* name() const noexcept = 0;
  virtual result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) = 0;
  virtual bool persistent() const noexcept { return true; }  // memory outlives cudaFree while pinned
  virtual bool supports_force_pcie() const noexcept { return true; }
  virtual std::uint32_t driver_version_word() const noexcept { return (2u << 16) | 6u; }
  virtual int descriptor() const noexcept { return -1; }  // of the kernel driver, if there is one
};

// What a backend may use; both outlive it. A null `cuda` is looked up at the first pin.
struct backend_environment {
  device_io* io = nullptr;
  const cu::driver_table* cuda = nullptr;
};

// The environment's table, or the process's.
inline result<const cu::driver_table*> driver_of(const cu::driver_table* given) {
  if (given != nullptr) return given;
  return cu::driver();
}

// Each checks cheaply (no CUDA initialisation) whether it can work here, and returns the reason if not.
result<std::unique_ptr<backend>> open_gdrdrv_backend(const backend_environment& environment);
result<std::unique_ptr<backend>> open_dmabuf_backend(const backend_environment& environment);
result<std::unique_ptr<backend>> open_rm_backend(const backend_environment& environment);

// Opens the named backend ("auto", "gdrdrv", "dmabuf", "rm"); "auto" opens the first that works in that order, and its
// error joins all reasons. If a valid request cannot be pinned, "auto" tries the next backend, because a driver's
// abilities show only at the first pin (auto_backend.cpp).
result<std::unique_ptr<backend>> open_backend(const backend_environment& environment, const std::string& name);

struct backend_report {
  std::string name;
  bool usable = false;
  std::string reason;  // why it is unusable; empty if usable
};
// Every backend's own answer, for `peerlane info` and `peerlane doctor`.
std::vector<backend_report> probe_backends();

}  // namespace pl
