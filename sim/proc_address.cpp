// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: base names ("cuMemAlloc") to the symbol that a program built for a CUDA version means by them.
#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/text.hpp"
#include "sim/device.hpp"

namespace pl::sim {

PL_SIM_API cuDriverGetVersion(int* version);

namespace {

// What each name has meant since which version: "2000 3020_v2" is NAME since 2.0 and NAME_v2 since 3.2.
struct entry_point {
  std::string_view name;
  std::string_view forms;
};
constexpr entry_point kEntryPoints[] = {
#define PL_ENTRY_POINT(name, forms) {#name, forms},
#include "entry_points.def"
#undef PL_ENTRY_POINT
};

constexpr std::uint64_t kPerThreadStream = 2;
constexpr int kPerThreadSince = 7000;
enum query_result : int { found = 0, not_found = 1, version_not_sufficient = 2 };

void* own_symbol(const std::string& name) {
  static void* const self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&initialize), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return self != nullptr ? dlsym(self, name.c_str()) : nullptr;
}

// The suffix that a version means, or nothing where the version is older than the name.
std::optional<std::string_view> find_form(std::string_view forms, int version) {
  std::optional<std::string_view> meant;
  while (!forms.empty()) {
    const auto end = std::min(forms.find(' '), forms.size());
    const std::string_view form = forms.substr(0, end);
    forms.remove_prefix(std::min(end + 1, forms.size()));
    int first_version = 0;
    const auto number = std::from_chars(form.data(), form.data() + form.size(), first_version);
    constexpr int kOldest = 2000;  // programs that say less mean it
    if (version >= first_version || first_version == kOldest)
      meant = form.substr(static_cast<std::size_t>(number.ptr - form.data()));
  }
  return meant;
}

struct resolved {
  void* symbol = nullptr;
  query_result reason = not_found;
};

resolved resolve(const std::string& name, int version, std::uint64_t flags) {
  const auto* known = std::find_if(std::begin(kEntryPoints), std::end(kEntryPoints),
                                   [&](const entry_point& one) { return one.name == name; });
  std::string symbol = name;
  if (known != std::end(kEntryPoints)) {
    const auto form = find_form(known->forms, version);
    if (!form) return {nullptr, version_not_sufficient};
    symbol += *form;
  } else if (own_symbol(name + "_v2") != nullptr) {
    symbol = name + "_v2";  // newer than the table
  }
  if ((flags & kPerThreadStream) != 0)
    for (const char* suffix : {"_ptsz", "_ptds"})
      if (void* const special = own_symbol(symbol + suffix)) {
        if (version < kPerThreadSince) return {nullptr, version_not_sufficient};
        return {special, found};
      }
  void* const symbol_found = own_symbol(symbol);
  return {symbol_found, symbol_found != nullptr ? found : not_found};
}

}  // namespace

PL_SIM_API cuGetProcAddress_v2(const char* name, void** out, int version, std::uint64_t flags, int* status) {
  int own_version = 0;
  cuDriverGetVersion(&own_version);
  if (name == nullptr || out == nullptr || version > own_version) return code::invalid_value;
  const auto got = std::strncmp(name, "cu", 2) == 0 ? resolve(name, version, flags) : resolved{};
  *out = got.symbol;
  if (status != nullptr) *status = got.reason;
  return got.symbol != nullptr || status != nullptr ? code::success : code::not_found;
}

PL_SIM_API cuGetProcAddress(const char* name, void** out, int version, std::uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}

}  // namespace pl::sim
