// SPDX-License-Identifier: Apache-2.0
// Who wrote the values of a store, what each writer holds in it, and how much it may hold (docs/design/0014). A writer is a
// name that the engine does not look into (the server's principals) and a number, which values and their records carry.
// Number 0 is nobody: what it writes is counted for nobody.
//
//   owners        name <-> number, quotas, sums over all pools
//   pool_owners   what of one pool counts for whom: taken back as a whole when the pool is deleted
//
// Threads: any. The parts that are marked so are the committer's alone.
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
  std::atomic<std::uint64_t> quota_keys{0}, quota_bytes{0};  // 0: none
  std::atomic<std::uint64_t> cluster_keys{0}, cluster_bytes{0};
  std::atomic<std::uint64_t> elsewhere_keys{0}, elsewhere_bytes{0};
  bool has_quota() const noexcept { return (quota_keys | quota_bytes | cluster_keys | cluster_bytes) != 0; }
  std::atomic<std::uint64_t> refused{0};
  bool is_recorded = false;  // the committer's: the catalogue has the name
};

class owners {
 public:
  // Beyond so many names, and for longer ones, values count together for the name "*".
  static constexpr std::size_t kMaxOwners = 65000;  // value::owner has 16 bits
  static constexpr std::size_t kMaxNameBytes = 1024;

  // The name's number, a new one if it has none. 0 for an empty name.
  owner_id need(std::string_view name);
  // Null: nobody, or no such number.
  owner_state* find(owner_id id) const;
  // As the catalogue has it, while the store is opened.
  void restore(owner_id id, std::string_view name);
  // In place of those so far; of owners that come later, too.
  void set_quotas(const std::vector<owner_quota>& quotas);
  // Likewise.
  void set_held_elsewhere(const std::vector<owner_held>& held);
  // By name.
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

// What changes for an owner.
struct owner_change {
  owner_id owner = 0;
  std::int64_t keys = 0, bytes = 0;
  bool is_nothing() const noexcept { return owner == 0 || (keys == 0 && bytes == 0); }
};
// A key's value and whose it is; an absent one has no bytes.
struct owned_value {
  bool exists = false;
  owner_id owner = 0;
  std::uint64_t bytes = 0;
};
// The bytes of a value that another owner replaces move from the one to the other.
struct owner_changes {
  owner_change gains, loses;  // (the first one may lose, too, where both values are the same owner's)
  static owner_changes between(const owned_value& before, const owned_value& after) noexcept;
  bool is_nothing() const noexcept { return gains.is_nothing() && loses.is_nothing(); }
};

// EDQUOT: the owner would hold more keys or bytes than its quota with this change. Less is always allowed.
status check_quota(const owner_state& owner, std::int64_t more_keys, std::uint64_t keys, std::int64_t more_bytes,
                   std::uint64_t bytes);

class pool_owners {
 public:
  struct share {
    explicit share(owner_state& state) : owner(state) {}
    owner_state& owner;
    std::atomic<std::uint64_t> keys{0}, bytes{0};                  // of the pool, as quotas count
    std::atomic<std::uint64_t> indexed_keys{0}, indexed_bytes{0};  // of them in the index; the committer writes these
  };

  // Before the pool is known to others.
  void join(owners& table) { table_ = &table; }
  // The owner's; it lives as long as this. Null: nobody, or no such owner.
  share* need(owner_id owner);
  // As the catalogue has it. False: there is no such owner.
  bool restore(owner_id owner, const pool_counts& counts);
  // Counts the changes; EDQUOT, and nothing counted, if a quota forbids them and `is_checked`.
  status charge(const owner_changes& changes, bool is_checked);
  void refund(const owner_changes& changes);
  // The pool is gone: none of it counts any more.
  void take_back();
  void each(const std::function<void(const share& one)>& visit) const;

 private:
  void add(const owner_change& change, std::int64_t sign);

  owners* table_ = nullptr;
  mutable std::shared_mutex mutex_;
  std::map<owner_id, share> shares_;
};

// Keys of the catalogue: an owner's name, and what of a pool is in the index by an owner.
std::string owner_key(owner_id id);
std::string owner_counts_key(pool_id pool, owner_id owner);

}  // namespace pl::store
