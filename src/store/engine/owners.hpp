// SPDX-License-Identifier: Apache-2.0
// Who wrote the values of a store, what each writer holds in it, and how much it may hold (docs/design/0014). A writer
// is a name that is opaque to the engine (the server's principals) and a number, which values and their records carry.
// Number 0 is nobody; its values are counted for nobody.
//
//   owners        name <-> number, quotas, sums over all pools
//   pool_owners   what of one pool counts for whom: subtracted as a whole when the pool is deleted
//
// Thread-safe, except for the parts that are marked as the committer's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

struct owner_state {
  owner_state(owner_id number, std::string_view text) : id(number), name(text) {}
  const owner_id id;
  const std::string name;
  std::atomic<std::uint64_t> keys{0}, bytes{0};
  std::atomic<std::uint64_t> quota_keys{0}, quota_bytes{0};  // 0: no quota
  std::atomic<std::uint64_t> cluster_keys{0}, cluster_bytes{0};
  std::atomic<std::uint64_t> elsewhere_keys{0}, elsewhere_bytes{0};
  bool has_quota() const noexcept { return (quota_keys | quota_bytes | cluster_keys | cluster_bytes) != 0; }
  std::atomic<std::uint64_t> refused{0};
  bool is_recorded = false;  // only the committer uses it: the catalogue has the name
};

class owners {
 public:
  // Further names, and names that are too long, share the owner "*".
  static constexpr std::size_t kMaxOwners = 65000;  // value::owner has 16 bits
  static constexpr std::size_t kMaxNameBytes = 1024;

  // The name's number; a new one if it has none. 0 for an empty name.
  owner_id need(std::string_view name);
  // Null for nobody, or if there is no such number.
  owner_state* find(owner_id id) const;
  // Takes an owner from the catalogue while the store is opened.
  void restore(owner_id id, std::string_view name);
  // Replaces all quotas; also applies to owners that come later.
  void set_quotas(const std::vector<owner_quota>& quotas);
  // Replaces what owners hold elsewhere; also applies to owners that come later.
  void set_held_elsewhere(const std::vector<owner_held>& held);
  // All owners, ordered by name.
  std::vector<owner_info> list() const;

 private:
  owner_state& add(owner_id id, std::string_view name);
  void give_quota(owner_state& one) const;
  void give_elsewhere(owner_state& one) const;

  mutable std::shared_mutex mutex_;
  std::map<std::string, owner_quota, std::less<>> quotas_;
  std::map<std::string, owner_held, std::less<>> elsewhere_;
  std::map<owner_id, std::unique_ptr<owner_state>> by_id_;
  std::map<std::string, owner_state*, std::less<>> by_name_;
};

// How an owner's usage changes.
struct owner_change {
  owner_id owner = 0;
  std::int64_t keys = 0, bytes = 0;
  bool is_nothing() const noexcept { return owner == 0 || (keys == 0 && bytes == 0); }
};
// A key's value and its owner; an absent value has no bytes.
struct owned_value {
  bool exists = false;
  owner_id owner = 0;
  std::uint64_t bytes = 0;
};
// When a value replaces one of another owner, the bytes move from one owner to the other.
struct owner_changes {
  owner_change gains, loses;  // `gains` may also lose, if both values have the same owner
  static owner_changes between(const owned_value& before, const owned_value& after) noexcept;
  bool is_nothing() const noexcept { return gains.is_nothing() && loses.is_nothing(); }
};

// EDQUOT if this change would take the owner above its quota of keys or bytes. A decrease is always allowed.
status check_quota(const owner_state& owner, std::int64_t more_keys, std::uint64_t keys, std::int64_t more_bytes,
                   std::uint64_t bytes);

class pool_owners {
 public:
  struct share {
    explicit share(owner_state& state) : owner(state) {}
    owner_state& owner;
    std::atomic<std::uint64_t> keys{0}, bytes{0};  // of the pool, as quotas count
    // the part that is in the index; only the committer writes these
    std::atomic<std::uint64_t> indexed_keys{0}, indexed_bytes{0};
  };

  // Call before the pool is known to other threads.
  void join(owners& table) { table_ = &table; }
  // The owner's share, which lives as long as this object. Null for nobody, or if there is no such owner.
  share* need(owner_id owner);
  // Takes counts from the catalogue. Returns false if there is no such owner.
  bool restore(owner_id owner, const pool_counts& counts);
  // Counts the changes. If `is_checked` and a quota forbids them: EDQUOT, and nothing is counted.
  status charge(const owner_changes& changes, bool is_checked);
  void refund(const owner_changes& changes);
  // Subtracts everything, because the pool is gone.
  void take_back();
  void each(const std::function<void(const share& one)>& visit) const;

 private:
  void add(const owner_change& change, std::int64_t sign);

  owners* table_ = nullptr;
  mutable std::shared_mutex mutex_;
  std::map<owner_id, share> shares_;
};

// Keys of the catalogue: an owner's name, and what an owner has in the index of one pool.
std::string owner_key(owner_id id);
std::string owner_counts_key(pool_id pool, owner_id owner);

}  // namespace pl::store
