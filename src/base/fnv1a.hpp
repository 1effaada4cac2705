// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace pl {

// FNV-1a of 64 bits: the same in every build and on every machine (parameters: draft-eastlake-fnv, section 5).
inline std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char one : text) hash = (hash ^ static_cast<unsigned char>(one)) * 0x100000001b3;
  return hash;
}

}  // namespace pl
