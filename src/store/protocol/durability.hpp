// SPDX-License-Identifier: Apache-2.0
// The durability levels of a put: one list for the protocol, the engine, the command line and the C interface. A level
// from outside is a number or a name, which is converted to a durability here or refused.
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl::store {

// Ordered: a greater level includes the smaller ones. The numbers are those of the protocol, of records on disk and of
// peerlane/store.h; their meaning never changes.
enum class durability : std::uint8_t {
  pool_default = 0,  // in requests only
  volatile_ = 1,     // survives nothing: gone when the process ends. It may have been on disk for lack of memory.
  logged = 2,      // survives the end of the process (kill -9). A loss of power undoes the last such puts, each as a whole.
  durable = 3,     // survives a loss of power: acknowledged after fdatasync
  replicated = 4,  // offered by no server: reserved, because earlier releases accepted it as `logged`
};

constexpr const char* name_of(durability level) noexcept {
  switch (level) {
    case durability::pool_default:
      return "default";
    case durability::volatile_:
      return "volatile";
    case durability::logged:
      return "logged";
    case durability::durable:
      return "durable";
    case durability::replicated:
      return "replicated";
  }
  return "?";
}

// Converts a number from outside; nothing if it is undefined.
constexpr std::optional<durability> durability_from(std::uint64_t number) noexcept {
  if (number > static_cast<std::uint64_t>(durability::replicated)) return std::nullopt;
  return static_cast<durability>(number);
}

// Converts a name that a caller may use; "default" is not one.
constexpr std::optional<durability> durability_named(std::string_view name) noexcept {
  for (std::uint64_t number = 1; const auto level = durability_from(number); ++number)
    if (name == name_of(*level)) return level;
  return std::nullopt;
}

// Whether a store offers this level. ENOTSUP: the level is named, but no server offers it. EINVAL: not a level.
inline status check_given(durability level) {
  switch (level) {
    case durability::pool_default:
    case durability::volatile_:
    case durability::logged:
    case durability::durable:
      return {};
    case durability::replicated:
      return failure{
          ENOTSUP,
          "store: durability replicated is not supported: use volatile, logged or durable; on how many servers of "
          "a cluster a value lies is said by its pool's copies"};
  }
  return failure{EINVAL, "store: durability " + std::to_string(static_cast<unsigned>(level)) +
                             " is not a durability: use volatile, logged or durable"};
}

// The meaning of a record by an earlier release that accepted `replicated`: it was acknowledged as logged.
constexpr durability level_of_record(durability stored) noexcept {
  return stored == durability::replicated ? durability::logged : stored;
}

}  // namespace pl::store
