// SPDX-License-Identifier: Apache-2.0
#include "nvml.hpp"

#include <dlfcn.h>

#include "text.hpp"

namespace pl::tools {
namespace {

// NVML's binary interface, restated: 0 is success; device handles are opaque pointers.
struct bar1_memory {
  unsigned long long total, free, used;
};
enum clock_type : int { kSmClock = 1, kMemoryClock = 2 };

struct nvml_table {
  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*by_bus_id)(const char*, void**) = nullptr;
  int (*bar1)(void*, bar1_memory*) = nullptr;
  int (*generation_now)(void*, unsigned*) = nullptr;
  int (*width_now)(void*, unsigned*) = nullptr;
  int (*generation_max)(void*, unsigned*) = nullptr;
  int (*width_max)(void*, unsigned*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*mig_mode)(void*, unsigned*, unsigned*) = nullptr;
  std::string problem;
};

template <class Call>
void load(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(dlsym(library, name));
}

nvml_table open_table() {
  nvml_table table;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
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
  load(library, "nvmlDeviceGetMigMode", table.mig_mode);
  if (table.init == nullptr || table.by_bus_id == nullptr) {
    table.problem = "libnvidia-ml.so.1 lacks nvmlInit_v2";
  } else if (const int rc = table.init(); rc != 0) {
    table.problem =
        format("nvmlInit failed: %s", table.error_string != nullptr ? table.error_string(rc) : "no reason given");
  }
  return table;
}

const nvml_table& nvml() {
  static const nvml_table table = open_table();
  return table;
}

std::optional<unsigned> ask(int (*call)(void*, unsigned*), void* handle) {
  unsigned value = 0;
  if (call == nullptr || call(handle, &value) != 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<nvml_device> nvml_device::open(const std::string& bus_id, std::string* why_not) {
  const auto refuse = [why_not](const std::string& reason) {
    if (why_not != nullptr) *why_not = reason;
    return std::nullopt;
  };
  if (!nvml().problem.empty()) return refuse(nvml().problem);
  void* handle = nullptr;
  if (const int rc = nvml().by_bus_id(bus_id.c_str(), &handle); rc != 0)
    return refuse(format("NVML does not know %s: %s", bus_id.c_str(),
                         nvml().error_string != nullptr ? nvml().error_string(rc) : "no reason given"));
  return nvml_device(handle);
}

std::optional<bar1_use> nvml_device::bar1() const {
  bar1_memory memory{};
  if (nvml().bar1 == nullptr || nvml().bar1(handle_, &memory) != 0) return std::nullopt;
  return bar1_use{memory.total, memory.used};
}

std::optional<pcie_link> nvml_device::link() const {
  const auto generation_now = ask(nvml().generation_now, handle_), width_now = ask(nvml().width_now, handle_);
  const auto generation_max = ask(nvml().generation_max, handle_), width_max = ask(nvml().width_max, handle_);
  if (!generation_now || !width_now || !generation_max || !width_max) return std::nullopt;
  return pcie_link{*generation_now, *width_now, *generation_max, *width_max};
}

std::optional<gpu_clocks> nvml_device::clocks() const {
  gpu_clocks out;
  if (nvml().clock == nullptr || nvml().clock(handle_, kSmClock, &out.sm_mhz) != 0 ||
      nvml().clock(handle_, kMemoryClock, &out.memory_mhz) != 0)
    return std::nullopt;
  return out;
}

std::optional<bool> nvml_device::mig_enabled() const {
  unsigned now = 0, pending = 0;
  if (nvml().mig_mode == nullptr || nvml().mig_mode(handle_, &now, &pending) != 0) return std::nullopt;
  return now != 0;
}

}  // namespace pl::tools
