// SPDX-License-Identifier: Apache-2.0
#include "map/backend.hpp"

#include <cerrno>

#include "base/log.hpp"
#include "base/text.hpp"
#include "map/auto_backend.hpp"

namespace pl {

result<std::unique_ptr<backend>> open_backend(const backend_environment& environment, const std::string& name) {
  if (name == "auto") return open_auto_backend(environment);
  for (const auto& candidate : kBackendCandidates) {
    if (name != candidate.name) continue;
    auto opened = candidate.open(environment);
    if (opened) {
      PL_LOG(info, "mapping backend: %s", candidate.name);
      return opened;
    }
    return no_way({opened.code(), format("%s: %s", candidate.name, opened.error().message.c_str())});
  }
  return failure{EINVAL, format("\"%s\" is not a backend: use auto, gdrdrv, dmabuf or rm", name.c_str())};
}

std::vector<backend_report> probe_backends() {
  std::vector<backend_report> reports;
  for (const auto& entry : kBackendCandidates) {
    auto opened = entry.open({&default_device_io(), nullptr});
    reports.push_back({entry.name, opened.ok(), opened ? std::string() : opened.error().message});
  }
  return reports;
}

}  // namespace pl
