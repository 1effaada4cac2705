// SPDX-License-Identifier: Apache-2.0
// The durability levels of a put: the one list, for the protocol, the engine, the command line and the C interface. A level
// that comes from outside is a number or a name; it becomes a durability here or is refused.
#pragma once

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl::store {

// Ordered: a greater one includes the smaller. The numbers are those of the protocol, of records on disk and of
// peerlane/store.h; they are never given another meaning.
enum class durability : std::uint8_t {
  pool_default = 0,  // in a request only
  volatile_ = 1,     // nothing: gone when the process ends. It may have been on disk for want of memory.
  logged = 2,        // the process's death (kill -9); loss of power takes back the last such puts, whole ones
  durable = 3,       // loss of power: acknowledged after fdatasync
  replicated = 4,    // no server gives it: reserved, because earlier releases let it through as `logged`
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

// Of a number from outside; nothing if it has no meaning.
constexpr std::optional<durability> durability_from(std::uint64_t number) noexcept {
  if (number > static_cast<std::uint64_t>(durability::replicated)) return std::nullopt;
  return static_cast<durability>(number);
}

// Of a name that a caller may say; "default" is none.
constexpr std::optional<durability> durability_named(std::string_view name) noexcept {
  for (std::uint64_t number = 1; const auto level = durability_from(number); ++number)
    if (name == name_of(*level)) return level;
  return std::nullopt;
}

// Whether a store offers this level. ENOTSUP: it has a name, and no server gives it; EINVAL: it is no
// level.
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

// What a record of an earlier release means that let `replicated` through: it was acknowledged as a logged one.
constexpr durability level_of_record(durability stored) noexcept {
  return stored == durability::replicated ? durability::logged : stored;
}

}  // namespace pl::store
