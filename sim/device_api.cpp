// SPDX-License-Identifier: Apache-2.0
// cuInit and what the driver says about devices. Values are those of a mid-sized data-centre part where a program could
// depend on them, and honest ones (16 multiprocessors, one block each) where they describe the simulator.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/env.hpp"
#include "sim/context.hpp"
#include "sim/identity.hpp"

namespace pl::sim {
namespace {

int attribute_value(const device& d, int attribute) {
  namespace attributes = device_attribute;
  switch (attribute) {
    case attributes::max_threads_per_block:
    case 2:  // block x
    case 3:  // block y
    case attributes::max_threads_per_multiprocessor:
      return kMaxThreadsPerBlock;
    case 4:  // block z
      return 64;
    case 5:  // grid x
      return 0x7fffffff;
    case 6:  // grid y
    case 7:  // grid z
      return 65535;
    case 8:   // shared memory of a block
    case 81:  // of a multiprocessor
    case 97:  // of a block, opt-in
      return kMaxSharedBytes;
    case 9:  // constant memory
      return 65536;
    case 10:  // warp
      return 32;
    case 11:  // pitch
      return 0x7fffffff;
    case 12:  // registers
    case 82:
      return 65536;
    case 13:  // clock, kHz
    case 36:
      return 1'000'000;
    case 51:  // pitch of textures: the one of their facts that programs round with
      return 32;
    case 79:  // L1 caches global and local memory
    case 80:
      return 1;
    case 87:  // single to double precision
      return 2;
    case 14:  // texture and surface alignment
    case 30:
      return 512;
    case 15:  // overlap
    case 31:  // concurrent kernels
      return 1;
    case attributes::multiprocessor_count:
      return kMultiprocessors;
    case attributes::can_map_host_memory:
    case attributes::unified_addressing:
    case attributes::managed_memory:
    case attributes::can_use_host_pointer_for_registered_mem:
    case attributes::can_flush_remote_writes:
    case attributes::virtual_memory_management:
    case attributes::handle_type_posix_fd:
    case attributes::gpu_direct_rdma_with_vmm:
    case attributes::memory_pools:
    case attributes::gpu_direct_rdma:
    case attributes::can_use_stream_wait_value_nor:
    case attributes::dma_buf:
    case 78:  // stream priorities are accepted
    case 92:  // stream memory operations, old names
    case 93:
    case 94:
    case 99:   // host registration
    case 106:  // blocks resident on a multiprocessor
    case 113:  // read-only registration
    case 122:  // 64-bit stream memory operations
      return 1;
    case 133:  // a client of the Multi-Process Service
      return env_read("PEERLANE_SIM_MODE").text == "mps" ? 1 : 0;
    case attributes::multicast_supported:
      return has_multicast() ? 1 : 0;
    case attributes::handle_type_fabric:
      return fabric_handles() != fabric_mode::off ? 1 : 0;
    case attributes::pci_bus_id:
      return static_cast<int>(kBoardBus);
    case attributes::pci_device_id:
      return d.physical;
    case attributes::l2_cache_bytes:
      return 32 << 20;
    case 37:  // memory bus, bits
      return 4096;
    case attributes::async_engine_count:
      return 2;
    case attributes::compute_capability_major:
      return 9;
    case attributes::compute_capability_minor:
      return 0;
    case attributes::gpu_direct_rdma_flush_options:
      return 1;  // from the host
    case attributes::gpu_direct_rdma_writes_ordering:
      return 100;  // ordered for this device
    case 119:      // handle types of pools
      return handle_type::none;
    case attributes::numa_id:
      return -1;
    case attributes::dma_buf_mmap:
      return 1;
    default:
      return 0;  // a feature that is not there
  }
}

constexpr int kLastAttribute = device_attribute::dma_buf_mmap;

}  // namespace

PL_SIM_API cuInit(unsigned flags) {
  if (const auto rc = injected_failure("cuInit"); rc != code::success) return rc;
  return flags == 0 ? initialize() : static_cast<result_t>(code::invalid_value);
}

PL_SIM_API cuDriverGetVersion(int* version) {
  if (version == nullptr) return code::invalid_value;
  static const int reported = static_cast<int>(env_read("PEERLANE_SIM_DRIVER_VERSION").integer);
  *version = reported;
  return code::success;
}

PL_SIM_API cuDeviceGetCount(int* count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (count == nullptr) return code::invalid_value;
  *count = static_cast<int>(devices().size());
  return code::success;
}

PL_SIM_API cuDeviceGet(device_t* out, int ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr) return code::invalid_value;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  *out = ordinal;
  return code::success;
}

PL_SIM_API cuDeviceGetName(char* name, int capacity, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (name == nullptr || capacity <= 0) return code::invalid_value;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  std::snprintf(name, static_cast<std::size_t>(capacity), "%s", kBoardName);
  return code::success;
}

PL_SIM_API cuDeviceGetUuid_v2(uuid_t* uuid, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const device* d = find_device(ordinal);
  if (uuid == nullptr) return code::invalid_value;
  if (d == nullptr) return code::invalid_device;
  *uuid = d->uuid;
  return code::success;
}

PL_SIM_API cuDeviceGetPCIBusId(char* text, int capacity, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const device* d = find_device(ordinal);
  if (d == nullptr) return code::invalid_device;
  if (text == nullptr || capacity <= static_cast<int>(d->pci_id.size())) return code::invalid_value;
  std::memcpy(text, d->pci_id.c_str(), d->pci_id.size() + 1);
  return code::success;
}

PL_SIM_API cuDeviceGetByPCIBusId(device_t* out, const char* text) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (out == nullptr || text == nullptr) return code::invalid_value;
  if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) {
    domain = function = 0;
    if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return code::invalid_value;
  }
  for (const auto& d : devices()) {
    if (domain != 0 || bus != kBoardBus || slot != static_cast<unsigned>(d.physical) || function != 0) continue;
    *out = d.ordinal;
    return code::success;
  }
  return code::invalid_device;
}

PL_SIM_API cuDeviceGetAttribute(int* value, int attribute, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const device* d = find_device(ordinal);
  if (value == nullptr || attribute < 1 || attribute > kLastAttribute) return code::invalid_value;
  if (d == nullptr) return code::invalid_device;
  *value = attribute_value(*d, attribute);
  return code::success;
}

PL_SIM_API cuDeviceComputeCapability(int* major, int* minor, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  if (major == nullptr || minor == nullptr) return code::invalid_value;
  *major = 9;
  *minor = 0;
  return code::success;
}

PL_SIM_API cuDeviceTotalMem_v2(std::size_t* bytes, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const device* d = find_device(ordinal);
  if (bytes == nullptr) return code::invalid_value;
  if (d == nullptr) return code::invalid_device;
  *bytes = d->memory_bytes;
  return code::success;
}

PL_SIM_API cuDeviceCanAccessPeer(int* can, device_t ordinal, device_t peer) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (can == nullptr) return code::invalid_value;
  if (find_device(ordinal) == nullptr || find_device(peer) == nullptr) return code::invalid_device;
  *can = ordinal != peer && env_read("PEERLANE_SIM_MODE").text != "no_peers" ? 1 : 0;
  return code::success;
}

PL_SIM_API cuDeviceGetP2PAttribute(int* value, int attribute, device_t source, device_t destination) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(source) == nullptr || find_device(destination) == nullptr) return code::invalid_device;
  if (source == destination) return code::invalid_device;
  if (value == nullptr || attribute < 1 || attribute > 4) return code::invalid_value;
  const int values[] = {0, 1, 1, 0};  // performance rank, access, native atomics, arrays
  *value = values[attribute - 1];
  return code::success;
}

// Nothing lingers between the bus and simulated memory, so a flush has nothing to do.
PL_SIM_API cuFlushGPUDirectRDMAWrites(int target, int scope) {
  const auto e = enter();
  if (!e) return e.rc;
  const bool is_known =
      target == flush_target::current_context && (scope == flush_scope::owner || scope == flush_scope::all_devices);
  if (!is_known) return code::invalid_value;
  flush_network_writes(scope == flush_scope::owner ? e.ctx->gpu->ordinal : -1);
  return code::success;
}

// The CUDA runtime's private interface to NVIDIA's driver: undocumented tables. The call logs an explanation, since every
// cuda* call of the program fails with this code from now on.
PL_SIM_API cuGetExportTable(const void** table, const void*) {
  log_unsupported_once(
      "cuGetExportTable",
      "is not part of the simulated GPU, which runs programs of the CUDA driver API (cu*). This program uses the "
      "CUDA runtime (libcudart, cuda*), which needs private tables of NVIDIA's driver: its calls answer "
      "cudaErrorNotSupported");
  note_runtime();
  if (table != nullptr) *table = nullptr;
  return code::not_supported;
}

PL_SIM_API cuProfilerStart() { return enter().rc; }
PL_SIM_API cuProfilerStop() { return enter().rc; }

}  // namespace pl::sim
