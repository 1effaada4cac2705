// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: base names ("cuMemAlloc") to the symbol that a program built for a CUDA version means by them.
#include <dlfcn.h>

#include <cstring>

#include "device.hpp"
#include "text.hpp"

namespace pl::sim {
namespace {

// Names whose newest symbol is not simply NAME_v2 where that exists. First fitting line wins.
struct version_rule {
  const char* name;
  int since;  // CUDA version as in cuDriverGetVersion
  const char* symbol;
};
constexpr version_rule kRules[] = {
    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
    {"cuMemAdvise", 13000, "cuMemAdvise_v2"},
    {"cuMemAdvise", 0, "cuMemAdvise"},
    {"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2"},
    {"cuMemPrefetchAsync", 0, "cuMemPrefetchAsync"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamBeginCapture", 0, "cuStreamBeginCapture"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 0, "cuStreamGetCaptureInfo"},
    {"cuStreamUpdateCaptureDependencies", 12030, "cuStreamUpdateCaptureDependencies_v2"},
    {"cuStreamUpdateCaptureDependencies", 0, "cuStreamUpdateCaptureDependencies"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 0, "cuGetProcAddress"},
    // these _v2 symbols take other parameters and are reached by their full names only
    {"cuCtxGetDevice", 0, "cuCtxGetDevice"},
    {"cuCtxSynchronize", 0, "cuCtxSynchronize"},
    {"cuStreamGetCtx", 0, "cuStreamGetCtx"},
};

constexpr std::uint64_t kPerThreadStream = 2;
enum query_result : int { found = 0, not_found = 1 };

void* own_symbol(const std::string& name) {
  static void* const self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&initialize), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return self != nullptr ? dlsym(self, name.c_str()) : nullptr;
}

void* resolve(const char* name, int version, std::uint64_t flags) {
  std::string symbol;
  for (const auto& rule : kRules)
    if (symbol.empty() && std::strcmp(rule.name, name) == 0 && version >= rule.since) symbol = rule.symbol;
  if (symbol.empty()) {
    symbol = format("%s_v2", name);
    if (own_symbol(symbol) == nullptr) symbol = name;
  }
  if ((flags & kPerThreadStream) != 0)
    for (const char* suffix : {"_ptsz", "_ptds"})
      if (void* const special = own_symbol(symbol + suffix)) return special;
  return own_symbol(symbol);
}

}  // namespace

PL_SIM_API cuGetProcAddress_v2(const char* name, void** out, int version, std::uint64_t flags, int* status) {
  if (name == nullptr || out == nullptr) return code::invalid_value;
  *out = std::strncmp(name, "cu", 2) == 0 ? resolve(name, version, flags) : nullptr;
  if (status != nullptr) *status = *out != nullptr ? found : not_found;
  return *out != nullptr || status != nullptr ? code::success : code::not_found;
}

PL_SIM_API cuGetProcAddress(const char* name, void** out, int version, std::uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}

}  // namespace pl::sim
