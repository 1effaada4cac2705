// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_spec.hpp"

namespace pl::bandwidth {

const char* to_string(executor_kind kind) {
  switch (kind) {
    case executor_kind::ce:
      return "CE";
    case executor_kind::sm:
      return "SM";
    case executor_kind::bar:
      return "BAR";
    case executor_kind::engine:
      return "ENGINE";
    case executor_kind::dma:
      return "DMA";
    case executor_kind::tma:
      return "TMA";
    case executor_kind::sm_read:
      return "READ";
    case executor_kind::sm_write:
      return "WRITE";
  }
  return "?";
}

const char* to_string(host_kind kind) {
  switch (kind) {
    case host_kind::pinned:
      return "pinned";
    case host_kind::pageable:
      return "pageable";
    case host_kind::huge:
      return "huge";
  }
  return "?";
}

std::string to_string(const place& location) {
  if (location.type == place::kind::gpu) return "G" + std::to_string(location.index);
  const char* prefix = location.host == host_kind::pageable ? "HU" : location.host == host_kind::huge ? "HH" : "H";
  return prefix + (location.index >= 0 ? std::to_string(location.index) : std::string());
}

}  // namespace pl::bandwidth
