// SPDX-License-Identifier: Apache-2.0
// The sessions, and the grants and pins that each of them owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "store/engine/early_write.hpp"
#include "store/engine/pools.hpp"
#include "store/engine/types.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

struct open_grant {
  pool_ref pool;
  std::string full;
  value_ref made;  // its memory is the grant's
  early_write early{};
};

class sessions {
 public:
  session_id open();
  // Releases what the session held before it returns. Unknown ones are ignored.
  void close(session_id session);

  // 0: no such session.
  grant_id add(session_id session, open_grant made);
  pin_id add(session_id session, value_ref pinned);
  std::optional<open_grant> take_grant(session_id session, grant_id id);
  // Calls `action` under the lock. False: no such grant.
  bool with_grant(session_id session, grant_id id, const std::function<void(open_grant&)>& action);
  bool drop_pin(session_id session, pin_id id);
  bool holds_any(session_id session) const;

  struct counts {
    std::uint64_t sessions = 0, grants = 0, pins = 0;
  };
  counts now() const;

 private:
  struct held {
    std::unordered_map<grant_id, open_grant> grants;
    std::unordered_map<pin_id, value_ref> pins;
  };
  mutable std::mutex mutex_;
  std::unordered_map<session_id, held> open_;
  std::uint64_t last_id_ = 0;
  std::uint64_t grants_ = 0, pins_ = 0;
};

}  // namespace pl::store
