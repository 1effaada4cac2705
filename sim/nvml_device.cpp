// SPDX-License-Identifier: Apache-2.0
// NVML's calls about the system and about what a board is: name, UUID, place, memory, use.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/env.hpp"
#include "base/text.hpp"
#include "sim/identity.hpp"
#include "sim/nvml_machine.hpp"

namespace pl::sim {
namespace {

int put_text(const std::string& text, char* out, unsigned capacity) {
  if (out == nullptr) return code::invalid_argument;
  if (capacity <= text.size()) return code::insufficient_size;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return code::success;
}

template <class T>
int put(T value, T* out) {
  if (out == nullptr) return code::invalid_argument;
  *out = value;
  return code::success;
}

template <class T>
int put_if_board(device_t handle, T value, T* out) {
  if (out == nullptr) return code::invalid_argument;
  const auto lookup = find_board(handle);
  return lookup.rc == code::success ? put(value, out) : lookup.rc;
}

int cuda_version(int* out) { return put(static_cast<int>(env_read("PEERLANE_SIM_DRIVER_VERSION").integer), out); }

struct memory_use {
  unsigned long long total = 0, used = 0;
};

// Used: by this process, whose simulated driver knows it. Nothing is known of others.
memory_use use_of(const board& entry) {
  const auto page = 2ull << 20;
  memory_use use;
  use.total = static_cast<unsigned long long>(env_read("PEERLANE_SIM_MEMORY").integer) / page * page;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return use;
  const auto used = reinterpret_cast<unsigned long long (*)(unsigned)>(dlsym(driver, "peerlaneSimUsedBytes"));
  if (used != nullptr) use.used = std::min(use.total, used(static_cast<unsigned>(entry.number)));
  dlclose(driver);
  return use;
}

}  // namespace

PL_NVML_API nvmlSystemGetDriverVersion(char* out, unsigned capacity) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  return put_text(kKernelDriverVersion, out, capacity);
}
PL_NVML_API nvmlSystemGetNVMLVersion(char* out, unsigned capacity) {
  return put_text(std::string("13.") + kKernelDriverVersion, out, capacity);
}
PL_NVML_API nvmlSystemGetCudaDriverVersion(int* out) { return cuda_version(out); }
PL_NVML_API nvmlSystemGetCudaDriverVersion_v2(int* out) { return cuda_version(out); }

PL_NVML_API nvmlSystemGetConfComputeState(confidential_state* out) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  const unsigned on = env_read("PEERLANE_SIM_MODE").text == "confidential" ? 1 : 0;
  return put(confidential_state{on, on, 0}, out);
}

PL_NVML_API nvmlDeviceGetCount_v2(unsigned* out) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  return put(static_cast<unsigned>(count_boards()), out);
}

PL_NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t* out) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  const device_t found = open_board(index);
  return found != nullptr && out != nullptr ? put(found, out) : code::invalid_argument;
}

PL_NVML_API nvmlDeviceGetHandleByUUID(const char* uuid, device_t* out) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  if (uuid == nullptr || out == nullptr) return code::invalid_argument;
  for (std::size_t i = 0; i < count_boards(); ++i)
    if (board_uuid_text(i) == uuid) return put(open_board(i), out);
  return code::not_found;
}

PL_NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, device_t* out) {
  if (const int rc = check_nvml(); rc != code::success) return rc;
  if (bus_id == nullptr || out == nullptr) return code::invalid_argument;
  const int number = find_board_by_pci_id(bus_id, count_boards());
  if (number < 0) return number == -1 ? code::invalid_argument : code::not_found;
  return put(open_board(static_cast<std::size_t>(number)), out);
}

PL_NVML_API nvmlDeviceGetName(device_t handle, char* out, unsigned capacity) {
  const auto lookup = find_board(handle);
  return lookup.rc == code::success ? put_text(kBoardName, out, capacity) : lookup.rc;
}
PL_NVML_API nvmlDeviceGetUUID(device_t handle, char* out, unsigned capacity) {
  const auto lookup = find_board(handle);
  return lookup.rc == code::success ? put_text(board_uuid_text(lookup.found.number), out, capacity) : lookup.rc;
}

PL_NVML_API nvmlDeviceGetIndex(device_t handle, unsigned* out) {
  return put_if_board(handle, static_cast<unsigned>(find_board(handle).found.number), out);
}
PL_NVML_API nvmlDeviceGetMinorNumber(device_t handle, unsigned* out) { return nvmlDeviceGetIndex(handle, out); }

PL_NVML_API nvmlDeviceGetPciInfo_v3(device_t handle, pci_info* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr) return code::invalid_argument;
  *out = {};
  out->bus = kBoardBus;
  out->device = static_cast<unsigned>(lookup.found.number);
  std::snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "%04x:%02x:%02x.0", 0u, out->bus, out->device & 0xff);
  std::snprintf(out->bus_id, sizeof out->bus_id, "%08x:%02x:%02x.0", 0u, out->bus, out->device);
  return code::success;
}

PL_NVML_API nvmlDeviceGetMemoryInfo(device_t handle, memory_info* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr) return code::invalid_argument;
  const auto use = use_of(lookup.found);
  *out = {use.total, use.total - use.used, use.used};
  return code::success;
}

PL_NVML_API nvmlDeviceGetMemoryInfo_v2(device_t handle, memory_info_v2* out) {
  constexpr unsigned kVersion = sizeof(memory_info_v2) | 2u << 24;
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr) return code::invalid_argument;
  if (out->version != kVersion) return code::function_not_found;
  const auto use = use_of(lookup.found);
  *out = {kVersion, use.total, 0, use.total - use.used, use.used};
  return code::success;
}

// Nobody measures how busy threads that play a GPU are.
PL_NVML_API nvmlDeviceGetUtilizationRates(device_t handle, utilization* out) {
  return put_if_board(handle, utilization{0, 0}, out);
}
PL_NVML_API nvmlDeviceGetPcieThroughput(device_t handle, int counter, unsigned* out) {
  if (counter != 0 && counter != 1) return code::invalid_argument;
  return put_if_board(handle, 0u, out);
}

PL_NVML_API nvmlDeviceGetCudaComputeCapability(device_t handle, int* major, int* minor) {
  if (major == nullptr || minor == nullptr) return code::invalid_argument;
  const int rc = put_if_board(handle, kComputeMajor, major);
  return rc == code::success ? put(kComputeMinor, minor) : rc;
}
PL_NVML_API nvmlDeviceGetArchitecture(device_t handle, unsigned* out) {
  constexpr unsigned kHopper = 9;
  return put_if_board(handle, kHopper, out);
}
PL_NVML_API nvmlDeviceGetComputeMode(device_t handle, int* out) { return put_if_board(handle, 0, out); }
PL_NVML_API nvmlDeviceGetPersistenceMode(device_t handle, int* out) { return put_if_board(handle, 1, out); }
PL_NVML_API nvmlDeviceGetMaxMigDeviceCount(device_t handle, unsigned* out) { return put_if_board(handle, 0u, out); }
PL_NVML_API nvmlDeviceIsMigDeviceHandle(device_t handle, unsigned* out) { return put_if_board(handle, 0u, out); }

// A simulated board is near every CPU, so threads are left where they are.
PL_NVML_API nvmlDeviceSetCpuAffinity(device_t handle) { return find_board(handle).rc; }
PL_NVML_API nvmlDeviceClearCpuAffinity(device_t handle) { return find_board(handle).rc; }

}  // namespace pl::sim
