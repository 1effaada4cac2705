// SPDX-License-Identifier: Apache-2.0
// The sessions, and the grants and pins that each of them owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arch/short_mutex.hpp"
#include "store/engine/early_write.hpp"
#include "store/engine/pools.hpp"
#include "store/engine/types.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

struct open_grant {
  pool_ref pool;
  std::string full;
  value_ref made;  // the grant's memory
  early_write early{};
};

// Grants of one call: their names are concatenated, and their numbers are consecutive.
struct run_of_grants {
  struct one {
    std::uint32_t name_offset = 0, name_bytes = 0;
    value_ref made;  // null: not granted, or used up
  };
  pool_ref pool;
  std::string names;  // full_keys
  std::vector<one> values;
  std::size_t left = 0;  // values that still have their memory
  std::string_view name_of(const one& value) const noexcept {
    return std::string_view(names).substr(value.name_offset, value.name_bytes);
  }
};

class sessions {
 public:
  session_id open();
  // Releases everything the session holds before it returns. Ignores unknown sessions.
  void close(session_id session);

  // Returns 0 if there is no such session.
  grant_id add(session_id session, open_grant made);
  pin_id add(session_id session, value_ref pinned);
  std::optional<open_grant> take_grant(session_id session, grant_id id);
  // Adds grants for many values. Returns the first number; the others follow. Returns 0 if there is no such session.
  // Precondition: there are values.
  grant_id add_run(session_id session, run_of_grants made);
  pin_id add_run(session_id session, std::vector<value_ref> pinned);
  // Takes what is left of the run that starts with this number.
  std::optional<run_of_grants> take_grants(session_id session, grant_id first);
  // Drops what is left of the run. Returns false if there is no such run.
  bool drop_pins(session_id session, pin_id first);

  // Calls `action` under the lock. Returns false if there is no such grant.
  bool with_grant(session_id session, grant_id id, const std::function<void(open_grant&)>& action);
  bool drop_pin(session_id session, pin_id id);
  bool holds_any(session_id session) const;

  struct counts {
    std::uint64_t sessions = 0, grants = 0, pins = 0;
  };
  counts now() const;

 private:
  struct run_of_pins {
    std::vector<value_ref> values;  // null: dropped
    std::size_t left = 0;
  };
  struct held {
    std::unordered_map<grant_id, open_grant> grants;
    std::unordered_map<pin_id, value_ref> pins;
    std::map<grant_id, run_of_grants> grant_runs;  // by first number
    std::map<pin_id, run_of_pins> pin_runs;
  };
  static std::optional<open_grant> take_out(held& mine, grant_id id);
  mutable short_mutex mutex_;
  std::unordered_map<session_id, held> open_;
  std::uint64_t last_id_ = 0;
  std::uint64_t grants_ = 0, pins_ = 0;
};

}  // namespace pl::store
