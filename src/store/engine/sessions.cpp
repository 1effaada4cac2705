// SPDX-License-Identifier: Apache-2.0
#include "store/engine/sessions.hpp"

namespace pl::store {

session_id sessions::open() {
  std::lock_guard lock(mutex_);
  open_.try_emplace(++last_id_);
  return last_id_;
}

namespace {

// The run that contains this number, or end().
template <class Runs>
auto run_with(Runs& runs, std::uint64_t id) {
  auto found = runs.upper_bound(id);
  if (found == runs.begin()) return runs.end();
  --found;
  return id - found->first < found->second.values.size() ? found : runs.end();
}

}  // namespace

void sessions::close(session_id session) {
  held gone;  // released after the lock
  {
    std::lock_guard lock(mutex_);
    const auto session_entry = open_.find(session);
    if (session_entry == open_.end()) return;
    gone = std::move(session_entry->second);
    open_.erase(session_entry);
    grants_ -= gone.grants.size();
    pins_ -= gone.pins.size();
    for (const auto& [first, run] : gone.grant_runs) grants_ -= run.left;
    for (const auto& [first, run] : gone.pin_runs) pins_ -= run.left;
  }
  for (const auto& [id, grant] : gone.grants) grant.pool->open_grants.fetch_sub(1);
  for (const auto& [first, run] : gone.grant_runs) run.pool->open_grants.fetch_sub(run.left);
}

grant_id sessions::add(session_id session, open_grant made) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return 0;
  made.pool->open_grants.fetch_add(1);
  session_entry->second.grants.emplace(++last_id_, std::move(made));
  ++grants_;
  return last_id_;
}

pin_id sessions::add(session_id session, value_ref pinned) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return 0;
  session_entry->second.pins.emplace(++last_id_, std::move(pinned));
  ++pins_;
  return last_id_;
}

grant_id sessions::add_run(session_id session, run_of_grants made) {
  const std::size_t count = made.values.size();
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return 0;
  made.pool->open_grants.fetch_add(made.left);
  grants_ += made.left;
  const grant_id first = last_id_ + 1;
  last_id_ += count;
  session_entry->second.grant_runs.emplace(first, std::move(made));
  return first;
}

pin_id sessions::add_run(session_id session, std::vector<value_ref> pinned) {
  const std::size_t count = pinned.size();
  std::size_t left = 0;
  for (const value_ref& one : pinned) left += one ? 1 : 0;
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return 0;
  const pin_id first = last_id_ + 1;
  last_id_ += count;
  session_entry->second.pin_runs.emplace(first, run_of_pins{std::move(pinned), left});
  pins_ += left;
  return first;
}

std::optional<run_of_grants> sessions::take_grants(session_id session, grant_id first) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return std::nullopt;
  auto found = session_entry->second.grant_runs.extract(first);
  if (found.empty()) return std::nullopt;
  grants_ -= found.mapped().left;
  found.mapped().pool->open_grants.fetch_sub(found.mapped().left);
  return std::move(found.mapped());
}

bool sessions::drop_pins(session_id session, pin_id first) {
  std::map<pin_id, run_of_pins>::node_type gone;
  {
    std::lock_guard lock(mutex_);
    const auto session_entry = open_.find(session);
    if (session_entry == open_.end()) return false;
    gone = session_entry->second.pin_runs.extract(first);
    if (gone.empty()) return false;
    pins_ -= gone.mapped().left;
  }
  value_ref::reset_many(gone.mapped().values);
  return true;
}

// Takes the grant out; one that belongs to a run becomes independent. Precondition: the lock is held.
std::optional<open_grant> sessions::take_out(held& mine, grant_id id) {
  if (auto found = mine.grants.extract(id); !found.empty()) return std::move(found.mapped());
  const auto run = run_with(mine.grant_runs, id);
  if (run == mine.grant_runs.end()) return std::nullopt;
  run_of_grants::one& value = run->second.values[id - run->first];
  if (!value.made) return std::nullopt;
  open_grant out{run->second.pool, std::string(run->second.name_of(value)), std::exchange(value.made, nullptr)};
  if (--run->second.left == 0) mine.grant_runs.erase(run);
  return out;
}

std::optional<open_grant> sessions::take_grant(session_id session, grant_id id) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return std::nullopt;
  auto found = take_out(session_entry->second, id);
  if (!found) return std::nullopt;
  --grants_;
  found->pool->open_grants.fetch_sub(1);
  return found;
}

bool sessions::with_grant(session_id session, grant_id id, const std::function<void(open_grant&)>& action) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return false;
  auto& grants = session_entry->second.grants;
  auto found = grants.find(id);
  if (found == grants.end()) {
    auto one = take_out(session_entry->second, id);
    if (!one) return false;
    found = grants.emplace(id, *std::move(one)).first;
  }
  action(found->second);
  return true;
}

bool sessions::drop_pin(session_id session, pin_id id) {
  value_ref gone;  // released after the lock
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return false;
  held& mine = session_entry->second;
  if (const auto found = mine.pins.find(id); found != mine.pins.end()) {
    gone = std::move(found->second);
    mine.pins.erase(found);
  } else {
    const auto run = run_with(mine.pin_runs, id);
    if (run == mine.pin_runs.end()) return false;
    gone = std::exchange(run->second.values[id - run->first], nullptr);
    if (!gone) return false;
    if (--run->second.left == 0) mine.pin_runs.erase(run);
  }
  --pins_;
  return true;
}

bool sessions::holds_any(session_id session) const {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return false;
  const held& mine = session_entry->second;
  return !(mine.grants.empty() && mine.pins.empty() && mine.grant_runs.empty() && mine.pin_runs.empty());
}

sessions::counts sessions::now() const {
  std::lock_guard lock(mutex_);
  return {open_.size(), grants_, pins_};
}

}  // namespace pl::store
