// SPDX-License-Identifier: Apache-2.0
// The management library of the simulated machine: what PEERLANE_SIM_LINKS says about each board, in NVML's calls.
//
// The environment is read again whenever a device is looked up, so that a test can let a counter rise between two looks.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "nvml_abi.hpp"
#include "settings.hpp"

#define PL_NVML_API extern "C" __attribute__((visibility("default"))) int

namespace pl::sim {
namespace {

using namespace nvml;  // NOLINT: this file speaks NVML's types

constexpr std::size_t kMostBoards = 16;

struct board {
  std::size_t number = 0;
  link_settings links;
};

struct machine {
  std::mutex mutex;
  std::array<board, kMostBoards> boards;
  std::size_t count = 0;
};

machine& the_machine() {
  static auto* const instance = new machine;
  return *instance;
}

// A copy, since another thread may look the device up anew.
struct looked_up {
  int rc = code::invalid_argument;
  board found;
  std::size_t boards = 0;
};
looked_up look_up(device_t handle) {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  for (const auto& one : m.boards)
    if (handle == &one && one.number < m.count) return {code::success, one, m.count};
  return {};
}

template <class Value, class Read>
int answer(device_t handle, Value* out, const Read& read) {
  if (out == nullptr) return code::invalid_argument;
  const auto on = look_up(handle);
  if (on.rc == code::success) *out = static_cast<Value>(read(on.found.links));
  return on.rc;
}

// Speed of one link in one direction, MB/s, as the real library gives it.
unsigned nvlink_mbps(unsigned version) {
  constexpr unsigned kByVersion[] = {0, 20000, 25781, 25781, 26562, 53125};
  return kByVersion[std::min<std::size_t>(version, std::size(kByVersion) - 1)];
}

unsigned nvlink_version_code(unsigned version) {
  constexpr unsigned kByVersion[] = {0, 1, 2, 4, 6, 7};  // nvmlNvlinkVersion_t: 1.0, 2.0, 3.0, 4.0, 5.0
  return kByVersion[std::min<std::size_t>(version, std::size(kByVersion) - 1)];
}

// The NVLinks of boards without a switch go to the other boards in turn.
std::size_t peer_of(const looked_up& on, unsigned link) {
  return (on.found.number + 1 + link % (on.boards - 1)) % on.boards;
}

bool is_active(const looked_up& on, unsigned link) { return link < on.found.links.nvlinks && on.boards > 1; }

int read_field(const looked_up& on, field_value& field) {
  field.type = kValueUnsigned;
  if (on.found.links.nvlinks_max == 0 || on.boards < 2) return code::not_supported;
  if (field.field == kFieldNvlinkMbps) field.value.as_unsigned = nvlink_mbps(on.found.links.nvlink_version);
  else if (field.field == kFieldNvlinkCount) field.value.as_unsigned = on.found.links.nvlinks_max;
  else return code::not_supported;
  return code::success;
}

}  // namespace

PL_NVML_API nvmlInit_v2() { return code::success; }
PL_NVML_API nvmlShutdown() { return code::success; }

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int rc) {
  switch (rc) {
    case code::success:
      return "Success";
    case code::invalid_argument:
      return "Invalid Argument";
    case code::not_supported:
      return "Not Supported";
    case code::not_found:
      return "Not Found";
    default:
      return "Unknown Error";
  }
}

PL_NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, device_t* out) {
  if (bus_id == nullptr || out == nullptr) return code::invalid_argument;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (std::sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return code::invalid_argument;
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  m.count = read_board_count();
  const auto settings = read_link_settings(m.count);
  for (std::size_t i = 0; i < m.count; ++i) m.boards[i] = {i, settings[i]};
  if (domain != 0 || bus != 0xfe || slot >= m.count || function != 0) return code::not_found;
  *out = &m.boards[slot];
  return code::success;
}

PL_NVML_API nvmlDeviceGetBAR1MemoryInfo(device_t handle, bar1_memory* out) {
  if (out == nullptr) return code::invalid_argument;
  const auto on = look_up(handle);
  if (on.rc == code::success) *out = {on.found.links.bar1_bytes, on.found.links.bar1_bytes, 0};
  return on.rc;
}

PL_NVML_API nvmlDeviceGetCurrPcieLinkGeneration(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.pcie_generation; });
}
PL_NVML_API nvmlDeviceGetCurrPcieLinkWidth(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.pcie_width; });
}
PL_NVML_API nvmlDeviceGetMaxPcieLinkGeneration(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.pcie_generation_max; });
}
PL_NVML_API nvmlDeviceGetMaxPcieLinkWidth(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.pcie_width_max; });
}
PL_NVML_API nvmlDeviceGetPcieReplayCounter(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.replays; });
}
PL_NVML_API nvmlDeviceGetMemoryBusWidth(device_t handle, unsigned* out) {
  return answer(handle, out, [](const link_settings& l) { return l.memory_bits; });
}
PL_NVML_API nvmlDeviceGetCurrentClocksEventReasons(device_t handle, unsigned long long* out) {
  return answer(handle, out, [](const link_settings& l) { return l.throttle; });
}

PL_NVML_API nvmlDeviceGetClockInfo(device_t handle, int which, unsigned* out) {
  if (which != kSmClock && which != kMemoryClock) return code::not_supported;
  return answer(handle, out, [which](const link_settings& l) { return which == kSmClock ? l.sm_mhz : l.memory_mhz; });
}
PL_NVML_API nvmlDeviceGetMaxClockInfo(device_t handle, int which, unsigned* out) {
  if (which != kSmClock && which != kMemoryClock) return code::not_supported;
  return answer(handle, out,
                [which](const link_settings& l) { return which == kSmClock ? l.sm_mhz_max : l.memory_mhz_max; });
}

PL_NVML_API nvmlDeviceGetTotalEccErrors(device_t handle, int error, int counter, unsigned long long* out) {
  if (error != kUncorrected || counter != kSinceDriverLoad) return code::not_supported;
  return answer(handle, out, [](const link_settings& l) { return l.ecc; });
}

// Processes that do not exist: only their number is of interest.
PL_NVML_API nvmlDeviceGetComputeRunningProcesses_v3(device_t handle, unsigned* count, process_info* list) {
  if (count == nullptr) return code::invalid_argument;
  const auto on = look_up(handle);
  if (on.rc != code::success) return on.rc;
  const unsigned room = *count;
  *count = on.found.links.processes;
  if (room < *count || (*count != 0 && list == nullptr)) return code::insufficient_size;
  for (unsigned i = 0; i < *count; ++i) list[i] = {0x7fff0000 + i, 0, 0, 0};
  return code::success;
}

PL_NVML_API nvmlDeviceGetMigMode(device_t handle, unsigned* now, unsigned* pending) {
  if (now == nullptr || pending == nullptr || look_up(handle).rc != code::success) return code::invalid_argument;
  *now = *pending = 0;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkState(device_t handle, unsigned link, int* out) {
  const auto on = look_up(handle);
  if (on.rc != code::success) return on.rc;
  if (out == nullptr || link >= on.found.links.nvlinks_max) return code::invalid_argument;
  *out = is_active(on, link) ? 1 : 0;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkVersion(device_t handle, unsigned link, unsigned* out) {
  const auto on = look_up(handle);
  if (on.rc != code::success) return on.rc;
  if (out == nullptr || link >= on.found.links.nvlinks_max) return code::invalid_argument;
  *out = nvlink_version_code(on.found.links.nvlink_version);
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(device_t handle, unsigned link, int* out) {
  const auto on = look_up(handle);
  if (on.rc != code::success) return on.rc;
  if (out == nullptr || !is_active(on, link)) return code::invalid_argument;
  *out = on.found.links.has_switch ? kRemoteSwitch : kRemoteGpu;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t handle, unsigned link, pci_info* out) {
  const auto on = look_up(handle);
  if (on.rc != code::success) return on.rc;
  if (out == nullptr || !is_active(on, link)) return code::invalid_argument;
  *out = {};
  out->bus = on.found.links.has_switch ? 0xfd : 0xfe;
  out->device = on.found.links.has_switch ? link % 4 : static_cast<unsigned>(peer_of(on, link));
  std::snprintf(out->bus_id, sizeof out->bus_id, "%08x:%02x:%02x.0", out->domain, out->bus, out->device);
  return code::success;
}

PL_NVML_API nvmlDeviceGetFieldValues(device_t handle, int count, field_value* list) {
  const auto on = look_up(handle);
  if (on.rc != code::success || list == nullptr || count < 0) return code::invalid_argument;
  for (int i = 0; i < count; ++i) list[i].rc = read_field(on, list[i]);
  return code::success;
}

}  // namespace pl::sim
