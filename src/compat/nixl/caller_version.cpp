// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/caller_version.hpp"

#include <dirent.h>
#include <dlfcn.h>

#include <cerrno>
#include <cstdio>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::nixl {
namespace {

// The library's own class that the views of remote memory came with: it shifts all functions behind it (version 1.0).
constexpr const char* kMarker = "_ZTV12nixlDescListI18nixlRemoteMetaDescE";
constexpr int kFirstMinor = 0, kLastMinor = 5;  // of version 1, compared with the wheels (test/compat/nixl)

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::string wheel_version(const std::string& library) {
  // <site-packages>/.nixl_cu12.mesonpy.libs/libnixl.so
  const std::string folder = folder_of(library);
  DIR* const packages = opendir(folder_of(folder).c_str());
  if (packages == nullptr) return {};
  const auto name_begin = folder.rfind('/') + 1;
  std::string name = folder.substr(name_begin);
  name = name.substr(name.find_first_not_of('.') == std::string::npos ? 0 : name.find_first_not_of('.'));
  name = name.substr(0, name.find('.')) + "-";  // nixl_cu12-
  const std::string end = ".dist-info";
  std::string found;
  while (const dirent* const entry = readdir(packages)) {
    const std::string one = entry->d_name;
    if (one.size() > name.size() + end.size() && one.compare(0, name.size(), name) == 0 &&
        one.compare(one.size() - end.size(), end.size(), end) == 0)
      found = one.substr(name.size(), one.size() - name.size() - end.size());
  }
  closedir(packages);
  return found;
}

status check_version(const std::string& version, bool has_marker, const std::string& library) {
  const bool is_forced = env_read("PEERLANE_NIXL_FORCE").integer != 0;
  int major = 0, minor = 0;
  const bool is_read = std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2;
  const bool is_known = version.empty() || (is_read && major == 1 && minor >= kFirstMinor && minor <= kLastMinor);
  if (is_known && has_marker) return {};
  if (is_forced && has_marker) return {};
  return failure{
      ENOTSUP, format("NIXL %s (%s) is refused: this plug-in knows the interface of versions 1.%d to 1.%d. Install one of "
                      "them (pip install 'nixl-cu12<1.%d'), update Peerlane%s",
                      version.empty() ? "of an unknown version" : version.c_str(), library.c_str(), kFirstMinor, kLastMinor,
                      kLastMinor + 1, has_marker ? ", or set PEERLANE_NIXL_FORCE=1 to try it" : "")};
}

status check_caller(const void* code) {
  Dl_info info{};
  if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return failure{ENOTSUP, "NIXL's library is not found"};
  void* const library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  const bool has_marker = library != nullptr && dlsym(library, kMarker) != nullptr;
  if (library != nullptr) dlclose(library);
  return check_version(wheel_version(info.dli_fname), has_marker, info.dli_fname);
}

}  // namespace pl::nixl
