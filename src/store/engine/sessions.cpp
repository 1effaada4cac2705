// SPDX-License-Identifier: Apache-2.0
#include "store/engine/sessions.hpp"

namespace pl::store {

session_id sessions::open() {
  std::lock_guard lock(mutex_);
  open_.try_emplace(++last_id_);
  return last_id_;
}

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
  }
  for (const auto& [id, grant] : gone.grants) grant.pool->open_grants.fetch_sub(1);
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

std::optional<open_grant> sessions::take_grant(session_id session, grant_id id) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return std::nullopt;
  auto found = session_entry->second.grants.extract(id);
  if (found.empty()) return std::nullopt;
  --grants_;
  found.mapped().pool->open_grants.fetch_sub(1);
  return std::move(found.mapped());
}

bool sessions::with_grant(session_id session, grant_id id, const std::function<void(open_grant&)>& action) {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return false;
  const auto found = session_entry->second.grants.find(id);
  if (found == session_entry->second.grants.end()) return false;
  action(found->second);
  return true;
}

bool sessions::drop_pin(session_id session, pin_id id) {
  value_ref gone;  // let go of behind the lock
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  if (session_entry == open_.end()) return false;
  const auto found = session_entry->second.pins.find(id);
  if (found == session_entry->second.pins.end()) return false;
  gone = std::move(found->second);
  session_entry->second.pins.erase(found);
  --pins_;
  return true;
}

bool sessions::holds_any(session_id session) const {
  std::lock_guard lock(mutex_);
  const auto session_entry = open_.find(session);
  return session_entry != open_.end() && !(session_entry->second.grants.empty() && session_entry->second.pins.empty());
}

sessions::counts sessions::now() const {
  std::lock_guard lock(mutex_);
  return {open_.size(), grants_, pins_};
}

}  // namespace pl::store
