// SPDX-License-Identifier: Apache-2.0
// The management library of the simulated machine: what PEERLANE_SIM_LINKS says about each board, in NVML's calls.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "sim/identity.hpp"
#include "sim/nvml_machine.hpp"

namespace pl::sim {
namespace {

constexpr std::size_t kMaxBoards = 16;

struct machine {
  std::mutex mutex;
  std::array<board, kMaxBoards> boards;
  std::size_t count = 0;
  unsigned users = 0;  // nvmlInit without nvmlShutdown

  void read_locked() {
    count = read_board_count();
    const auto settings = read_link_settings(count);
    for (std::size_t i = 0; i < count; ++i) boards[i] = {i, settings[i]};
  }
};

machine& the_machine() {
  static auto* const instance = new machine;
  return *instance;
}

}  // namespace

board_lookup find_board(device_t handle) {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  if (m.users == 0) return {code::uninitialized, {}, 0};
  for (const auto& one : m.boards)
    if (handle == &one && one.number < m.count) return {code::success, one, m.count};
  return {};
}

int check_nvml() {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  return m.users != 0 ? code::success : code::uninitialized;
}

device_t open_board(std::size_t number) {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  m.read_locked();
  return number < m.count ? &m.boards[number] : nullptr;
}

std::size_t count_boards() { return read_board_count(); }

namespace {

template <class Value, class Read>
int answer(device_t handle, Value* out, const Read& read) {
  if (out == nullptr) return code::invalid_argument;
  const auto lookup = find_board(handle);
  if (lookup.rc == code::success) *out = static_cast<Value>(read(lookup.found.links));
  return lookup.rc;
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
std::size_t peer_of(const board_lookup& lookup, unsigned link) {
  return (lookup.found.number + 1 + link % (lookup.boards - 1)) % lookup.boards;
}

bool is_active(const board_lookup& lookup, unsigned link) { return link < lookup.found.links.nvlinks && lookup.boards > 1; }

int read_field(const board_lookup& lookup, field_value& field) {
  field.type = kValueUnsigned;
  if (lookup.found.links.nvlinks_max == 0 || lookup.boards < 2) return code::not_supported;
  if (field.field == kFieldNvlinkMbps) field.value.as_unsigned = nvlink_mbps(lookup.found.links.nvlink_version);
  else if (field.field == kFieldNvlinkCount) field.value.as_unsigned = lookup.found.links.nvlinks_max;
  else return code::not_supported;
  return code::success;
}

}  // namespace

PL_NVML_API nvmlInit_v2() {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  ++m.users;
  return code::success;
}
PL_NVML_API nvmlInit() { return nvmlInit_v2(); }
PL_NVML_API nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

PL_NVML_API nvmlShutdown() {
  machine& m = the_machine();
  const std::lock_guard lock(m.mutex);
  if (m.users == 0) return code::uninitialized;
  --m.users;
  return code::success;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int rc) {
  // In the order of their numbers, from 0 (driver 580.159).
  static constexpr const char* kTexts[] = {"Success",
                                           "Uninitialized",
                                           "Invalid Argument",
                                           "Not Supported",
                                           "Insufficient Permissions",
                                           "Already Initialized",
                                           "Not Found",
                                           "Insufficient Size",
                                           "Insufficient External Power",
                                           "Driver Not Loaded",
                                           "Timeout",
                                           "Interrupt Request Issue",
                                           "NVML Shared Library Not Found",
                                           "Function Not Found",
                                           "Corrupted infoROM",
                                           "GPU is lost",
                                           "GPU requires reset",
                                           "GPU access blocked by the operating system",
                                           "Driver/library version mismatch",
                                           "In use by another client",
                                           "Insufficient Memory",
                                           "No data",
                                           "vGPU ECC not supported",
                                           "Insufficient Resources",
                                           "Invalid Frequency",
                                           "Argument version mismatch"};
  return rc >= 0 && static_cast<std::size_t>(rc) < std::size(kTexts) ? kTexts[rc] : "Unknown Error";
}

PL_NVML_API nvmlDeviceGetBAR1MemoryInfo(device_t handle, bar1_memory* out) {
  if (out == nullptr) return code::invalid_argument;
  const auto lookup = find_board(handle);
  if (lookup.rc == code::success) *out = {lookup.found.links.bar1_bytes, lookup.found.links.bar1_bytes, 0};
  return lookup.rc;
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

PL_NVML_API nvmlDeviceGetClockInfo(device_t handle, int clock_type, unsigned* out) {
  if (clock_type != kSmClock && clock_type != kMemoryClock) return code::not_supported;
  return answer(handle, out,
                [clock_type](const link_settings& l) { return clock_type == kSmClock ? l.sm_mhz : l.memory_mhz; });
}
PL_NVML_API nvmlDeviceGetMaxClockInfo(device_t handle, int clock_type, unsigned* out) {
  if (clock_type != kSmClock && clock_type != kMemoryClock) return code::not_supported;
  return answer(handle, out,
                [clock_type](const link_settings& l) { return clock_type == kSmClock ? l.sm_mhz_max : l.memory_mhz_max; });
}

PL_NVML_API nvmlDeviceGetTotalEccErrors(device_t handle, int error, int counter, unsigned long long* out) {
  if (error != kUncorrected || counter != kSinceDriverLoad) return code::not_supported;
  return answer(handle, out, [](const link_settings& l) { return l.ecc; });
}

// Processes that do not exist: only their number is of interest.
PL_NVML_API nvmlDeviceGetComputeRunningProcesses_v3(device_t handle, unsigned* count, process_info* list) {
  if (count == nullptr) return code::invalid_argument;
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  const unsigned room = *count;
  *count = lookup.found.links.processes;
  if (room < *count || (*count != 0 && list == nullptr)) return code::insufficient_size;
  for (unsigned i = 0; i < *count; ++i) list[i] = {0x7fff0000 + i, 0, 0, 0};
  return code::success;
}

PL_NVML_API nvmlDeviceGetMigMode(device_t handle, unsigned* now, unsigned* pending) {
  if (now == nullptr || pending == nullptr || find_board(handle).rc != code::success) return code::invalid_argument;
  *now = *pending = 0;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkState(device_t handle, unsigned link, int* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr || link >= lookup.found.links.nvlinks_max) return code::invalid_argument;
  *out = is_active(lookup, link) ? 1 : 0;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkVersion(device_t handle, unsigned link, unsigned* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr || link >= lookup.found.links.nvlinks_max) return code::invalid_argument;
  *out = nvlink_version_code(lookup.found.links.nvlink_version);
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(device_t handle, unsigned link, int* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr || !is_active(lookup, link)) return code::invalid_argument;
  *out = lookup.found.links.has_switch ? kRemoteSwitch : kRemoteGpu;
  return code::success;
}

PL_NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t handle, unsigned link, pci_info* out) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success) return lookup.rc;
  if (out == nullptr || !is_active(lookup, link)) return code::invalid_argument;
  *out = {};
  out->bus = lookup.found.links.has_switch ? 0xfd : kBoardBus;
  out->device = lookup.found.links.has_switch ? link % 4 : static_cast<unsigned>(peer_of(lookup, link));
  std::snprintf(out->bus_id, sizeof out->bus_id, "%08x:%02x:%02x.0", out->domain, out->bus, out->device);
  return code::success;
}

PL_NVML_API nvmlDeviceGetFieldValues(device_t handle, int count, field_value* list) {
  const auto lookup = find_board(handle);
  if (lookup.rc != code::success || list == nullptr || count < 0) return code::invalid_argument;
  for (int i = 0; i < count; ++i) list[i].rc = read_field(lookup, list[i]);
  return code::success;
}

}  // namespace pl::sim
