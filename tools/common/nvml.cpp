// SPDX-License-Identifier: Apache-2.0
#include "tools/common/nvml.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.hpp"
#include "cuda/nvml_abi.hpp"

namespace pl::tools {
namespace {

struct nvml_table {
  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*by_bus_id)(const char*, void**) = nullptr;
  int (*bar1)(void*, nvml::bar1_memory*) = nullptr;
  int (*generation_now)(void*, unsigned*) = nullptr;
  int (*width_now)(void*, unsigned*) = nullptr;
  int (*generation_max)(void*, unsigned*) = nullptr;
  int (*width_max)(void*, unsigned*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*max_clock)(void*, int, unsigned*) = nullptr;
  int (*mig_mode)(void*, unsigned*, unsigned*) = nullptr;
  int (*replays)(void*, unsigned*) = nullptr;
  int (*link_state)(void*, unsigned, int*) = nullptr;
  int (*link_version)(void*, unsigned, unsigned*) = nullptr;
  int (*link_remote)(void*, unsigned, nvml::pci_info*) = nullptr;
  int (*link_remote_type)(void*, unsigned, int*) = nullptr;
  int (*fields)(void*, int, nvml::field_value*) = nullptr;
  int (*bus_width)(void*, unsigned*) = nullptr;
  int (*throttle)(void*, unsigned long long*) = nullptr;
  int (*ecc)(void*, int, int, unsigned long long*) = nullptr;
  int (*repairs)(void*, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*confidential)(nvml::confidential_state*) = nullptr;
  int (*processes)(void*, unsigned*, nvml::process_info*) = nullptr;
  std::string problem;
};

template <class Call>
void load(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(dlsym(library, name));
}

// The simulated GPU brings its own library, in its own folder: the real one knows nothing of its devices.
std::string library_path() {
  const std::string name = "libnvidia-ml.so.1";
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* mark = cuda == nullptr ? nullptr : dlsym(cuda, "peerlaneSimVersion");
  Dl_info library{};
  if (mark == nullptr || dladdr(mark, &library) == 0) return name;
  const std::string path = library.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + name;
}

void load_link_calls(void* source, nvml_table& table) {
  load(source, "nvmlDeviceGetPcieReplayCounter", table.replays);
  load(source, "nvmlDeviceGetNvLinkState", table.link_state);
  load(source, "nvmlDeviceGetNvLinkVersion", table.link_version);
  load(source, "nvmlDeviceGetNvLinkRemotePciInfo_v2", table.link_remote);
  load(source, "nvmlDeviceGetNvLinkRemoteDeviceType", table.link_remote_type);
  load(source, "nvmlDeviceGetFieldValues", table.fields);
}

void load_condition_calls(void* source, nvml_table& table) {
  load(source, "nvmlDeviceGetMemoryBusWidth", table.bus_width);
  load(source, "nvmlDeviceGetCurrentClocksEventReasons", table.throttle);  // the name since driver 535
  if (table.throttle == nullptr) load(source, "nvmlDeviceGetCurrentClocksThrottleReasons", table.throttle);
  load(source, "nvmlDeviceGetTotalEccErrors", table.ecc);
  load(source, "nvmlDeviceGetComputeRunningProcesses_v3", table.processes);
  load(source, "nvmlDeviceGetRemappedRows", table.repairs);
  load(source, "nvmlSystemGetConfComputeState", table.confidential);
}

nvml_table open_table() {
  nvml_table table;
  void* library = dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    table.problem = "libnvidia-ml.so.1 cannot be opened";
    return table;
  }
  load(library, "nvmlInit_v2", table.init);
  load(library, "nvmlErrorString", table.error_string);
  load(library, "nvmlDeviceGetHandleByPciBusId_v2", table.by_bus_id);
  load(library, "nvmlDeviceGetBAR1MemoryInfo", table.bar1);
  load(library, "nvmlDeviceGetCurrPcieLinkGeneration", table.generation_now);
  load(library, "nvmlDeviceGetCurrPcieLinkWidth", table.width_now);
  load(library, "nvmlDeviceGetMaxPcieLinkGeneration", table.generation_max);
  load(library, "nvmlDeviceGetMaxPcieLinkWidth", table.width_max);
  load(library, "nvmlDeviceGetClockInfo", table.clock);
  load(library, "nvmlDeviceGetMaxClockInfo", table.max_clock);
  load(library, "nvmlDeviceGetMigMode", table.mig_mode);
  load_link_calls(library, table);
  load_condition_calls(library, table);
  if (table.init == nullptr || table.by_bus_id == nullptr) {
    table.problem = "libnvidia-ml.so.1 lacks nvmlInit_v2";
  } else if (const int rc = table.init(); rc != 0) {
    table.problem =
        format("nvmlInit failed: %s", table.error_string != nullptr ? table.error_string(rc) : "no reason given");
  }
  return table;
}

const nvml_table& calls() {
  static const nvml_table table = open_table();
  return table;
}

std::optional<unsigned> ask(int (*call)(void*, unsigned*), void* handle) {
  unsigned value = 0;
  if (call == nullptr || call(handle, &value) != 0) return std::nullopt;
  return value;
}

std::optional<gpu_clocks> read_clocks(int (*call)(void*, int, unsigned*), void* handle) {
  gpu_clocks out;
  if (call == nullptr || call(handle, nvml::kSmClock, &out.sm_mhz) != 0 ||
      call(handle, nvml::kMemoryClock, &out.memory_mhz) != 0)
    return std::nullopt;
  return out;
}

std::optional<unsigned> ask_field(unsigned field_id, void* handle) {
  nvml::field_value field{};
  field.field = field_id;
  if (calls().fields == nullptr || calls().fields(handle, 1, &field) != 0 || field.rc != 0) return std::nullopt;
  if (field.type == nvml::kValueUnsigned) return field.value.as_unsigned;
  if (field.type == nvml::kValueUnsignedLong) return static_cast<unsigned>(field.value.as_unsigned_long);
  if (field.type == nvml::kValueUnsignedLongLong) return static_cast<unsigned>(field.value.as_unsigned_long_long);
  return std::nullopt;
}

nvlink_port describe_port(void* handle, unsigned link, bool is_active) {
  nvlink_port out;
  out.is_active = is_active;
  if (!is_active) return out;
  if (calls().link_version != nullptr && calls().link_version(handle, link, &out.version) != 0) out.version = 0;
  if (int type = 0; calls().link_remote_type != nullptr && calls().link_remote_type(handle, link, &type) == 0)
    out.remote = type == nvml::kRemoteGpu      ? nvlink_port::end::gpu
                 : type == nvml::kRemoteSwitch ? nvlink_port::end::network_switch
                                               : nvlink_port::end::unknown;
  if (nvml::pci_info remote{}; calls().link_remote != nullptr && calls().link_remote(handle, link, &remote) == 0)
    out.remote_bus_id.assign(remote.bus_id, strnlen(remote.bus_id, sizeof remote.bus_id));
  return out;
}

}  // namespace

std::optional<bool> is_confidential() {
  nvml::confidential_state state{};
  if (!calls().problem.empty() || calls().confidential == nullptr || calls().confidential(&state) != 0) return std::nullopt;
  return state.feature != 0;
}

std::optional<nvml_device> nvml_device::open(const std::string& bus_id, std::string* why_not) {
  const auto refuse = [why_not](const std::string& reason) {
    if (why_not != nullptr) *why_not = reason;
    return std::nullopt;
  };
  if (!calls().problem.empty()) return refuse(calls().problem);
  void* handle = nullptr;
  if (const int rc = calls().by_bus_id(bus_id.c_str(), &handle); rc != 0)
    return refuse(format("NVML does not know %s: %s", bus_id.c_str(),
                         calls().error_string != nullptr ? calls().error_string(rc) : "no reason given"));
  return nvml_device(handle);
}

std::optional<bar1_use> nvml_device::bar1() const {
  nvml::bar1_memory memory{};
  if (calls().bar1 == nullptr || calls().bar1(handle_, &memory) != 0) return std::nullopt;
  return bar1_use{memory.total, memory.used};
}

std::optional<pcie_link> nvml_device::link() const {
  const auto generation_now = ask(calls().generation_now, handle_), width_now = ask(calls().width_now, handle_);
  const auto generation_max = ask(calls().generation_max, handle_), width_max = ask(calls().width_max, handle_);
  if (!generation_now || !width_now || !generation_max || !width_max) return std::nullopt;
  return pcie_link{*generation_now, *width_now, *generation_max, *width_max};
}

std::optional<gpu_clocks> nvml_device::clocks() const { return read_clocks(calls().clock, handle_); }
std::optional<gpu_clocks> nvml_device::max_clocks() const { return read_clocks(calls().max_clock, handle_); }

std::optional<bool> nvml_device::mig_enabled() const {
  unsigned now = 0, pending = 0;
  if (calls().mig_mode == nullptr || calls().mig_mode(handle_, &now, &pending) != 0) return std::nullopt;
  return now != 0;
}

std::optional<unsigned> nvml_device::pcie_replays() const { return ask(calls().replays, handle_); }
std::optional<unsigned> nvml_device::memory_bus_bits() const { return ask(calls().bus_width, handle_); }

std::optional<unsigned> nvml_device::nvlink_mbps() const {
  const auto speed = ask_field(nvml::kFieldNvlinkMbps, handle_);
  return speed && *speed != 0 ? speed : std::nullopt;
}

std::vector<nvlink_port> nvml_device::nvlinks() const {
  std::vector<nvlink_port> out;
  if (calls().link_state == nullptr) return out;
  const unsigned count = std::min(ask_field(nvml::kFieldNvlinkCount, handle_).value_or(nvml::kMaxLinks), nvml::kMaxLinks);
  for (unsigned link = 0; link < count; ++link) {
    int state = 0;
    if (calls().link_state(handle_, link, &state) == 0) out.push_back(describe_port(handle_, link, state != 0));
  }
  return out;
}

std::optional<std::uint64_t> nvml_device::throttle_reasons() const {
  unsigned long long bits = 0;
  if (calls().throttle == nullptr || calls().throttle(handle_, &bits) != 0) return std::nullopt;
  return bits;
}

std::optional<std::uint64_t> nvml_device::ecc_uncorrected() const {
  unsigned long long count = 0;
  if (calls().ecc == nullptr || calls().ecc(handle_, nvml::kUncorrected, nvml::kSinceDriverLoad, &count) != 0)
    return std::nullopt;
  return count;
}

std::optional<nvml_device::memory_repairs> nvml_device::repairs() const {
  memory_repairs out;
  unsigned pending = 0, failed = 0;
  if (calls().repairs == nullptr || calls().repairs(handle_, &out.corrected, &out.uncorrected, &pending, &failed) != 0)
    return std::nullopt;
  out.is_pending = pending != 0;
  out.has_failed = failed != 0;
  return out;
}

std::optional<unsigned> nvml_device::other_processes() const {
  std::array<nvml::process_info, 64> list{};
  unsigned count = static_cast<unsigned>(list.size());
  if (calls().processes == nullptr) return std::nullopt;
  const int rc = calls().processes(handle_, &count, list.data());
  if (rc == nvml::code::insufficient_size) return count;
  if (rc != 0) return std::nullopt;
  const auto self = static_cast<unsigned>(getpid());
  return static_cast<unsigned>(std::count_if(list.begin(), list.begin() + count, [self](const nvml::process_info& one) {
    return one.pid != 0 && one.pid != self;
  }));
}

}  // namespace pl::tools
