// SPDX-License-Identifier: Apache-2.0
#include "store/engine/requests.hpp"

#include <cerrno>

#include "base/text.hpp"
#include "store/engine/bytes.hpp"

namespace pl::store {
namespace {

std::string client_key(std::uint64_t client) {
  std::string key;
  append_ordered(key, client);
  return key;
}

std::string slot_key(const request_key& request) {
  std::string key = client_key(request.client);
  append_ordered(key, static_cast<std::uint32_t>(request.sequence % kDedupeWindow));
  return key;
}

}  // namespace

status requests::load() {
  std::string first_key;
  for (bool more = true; more;) {
    more = false;
    status scanned = index_.scan(family::requests, first_key, {}, false, [&](std::string_view key, std::string_view) {
      const std::uint64_t client = std::uint64_t{read_ordered(key)} << 32 | read_ordered(key.substr(4));
      group& client_group = group_of(client);
      std::lock_guard lock(client_group.mutex);
      need(client_group, client).in_index = true;
      first_key = client_key(client + 1);
      more = client + 1 != 0;
      return false;
    });
    if (!scanned) return scanned;
  }
  return {};
}

// Precondition: the group's mutex is held.
requests::window& requests::need(group& client_group, std::uint64_t client) {
  const auto found = client_group.clients.find(client);
  if (found != client_group.clients.end()) {
    client_group.recent.splice(client_group.recent.begin(), client_group.recent, found->second.recent);
    return found->second;
  }
  if (client_group.clients.size() >= kMaxClients / kGroups) (void)forget_oldest_client(client_group);
  window& made = client_group.clients[client];
  made.recent = client_group.recent.insert(client_group.recent.begin(), client);
  return made;
}

// Returns false if all clients are in use. Precondition: the group's mutex is held.
bool requests::forget_oldest_client(group& client_group) {
  for (auto oldest = client_group.recent.rbegin(); oldest != client_group.recent.rend(); ++oldest) {
    const auto gone = client_group.clients.find(*oldest);
    if (gone->second.users != 0) continue;
    if (gone->second.in_index) client_group.forgotten.push_back(*oldest);
    client_group.items -= gone->second.items;
    client_group.clients.erase(gone);
    client_group.recent.erase(std::next(oldest).base());
    return true;
  }
  return false;
}

requests::use::use(group& its_group, std::uint64_t client) : group_(&its_group) {
  const std::lock_guard lock(group_->mutex);
  window_ = &need(*group_, client);
  ++window_->users;
  counted_items_ = window_->items;
}

requests::use::~use() {
  if (group_ == nullptr) return;
  const std::lock_guard lock(group_->mutex);
  group_->items += window_->items - counted_items_;  // modulo 2^64
  // This client is still in use, so it is not among those forgotten.
  while (group_->items > kMaxGroupItems && forget_oldest_client(*group_)) {}
  --window_->users;
}

void requests::set_slot(window& destination, request_outcome outcome) {
  const std::size_t slot = outcome.sequence % kDedupeWindow;
  if (destination.slots.size() <= slot) destination.slots.resize(slot + 1);
  destination.items += outcome.items.size();
  destination.items -= destination.slots[slot].items.size();
  destination.slots[slot] = std::move(outcome);
  limit_items(destination);
}

// If the client has too many items, its oldest batches lose theirs. Their numbers stay, so that they are not applied
// again.
void requests::limit_items(window& destination) {
  while (destination.items > kMaxItems) {
    request_outcome* oldest = nullptr;
    for (request_outcome& one : destination.slots)
      if (one.items.size() > 1 && (oldest == nullptr || one.sequence < oldest->sequence)) oldest = &one;
    if (oldest == nullptr) return;
    destination.items -= oldest->items.size();
    std::vector<request_outcome::item>().swap(oldest->items);
  }
}

std::size_t requests::items() {
  std::size_t sum = 0;
  for (group& client_group : groups_) {
    const std::lock_guard lock(client_group.mutex);
    sum += client_group.items;
  }
  return sum;
}

status requests::read_window(std::uint64_t client, window& destination) {
  return index_.scan(family::requests, client_key(client), client_key(client + 1), false,
                     [&](std::string_view, std::string_view raw) {
                       auto outcome = decode_outcome(raw);
                       if (!outcome) return true;  // a layout of another version counts as forgotten
                       set_slot(destination, std::move(*outcome));
                       return true;
                     });
}

status requests::read_if_stored(std::uint64_t client, window& destination) {
  if (!destination.in_index || !destination.slots.empty()) return {};
  status read = read_window(client, destination);
  if (!read) destination.slots.clear(), destination.items = 0;  // the next request reads them again
  return read;
}

result<requests::turn> requests::lock_client(std::uint64_t client) {
  client_lock lock(client_mutex_of(client));
  use known(group_of(client), client);
  if (status read = read_if_stored(client, *known); !read) return std::move(read).error();
  return turn(std::move(lock), std::move(known));
}

void requests::turn::fetch(std::uint64_t first_sequence, std::size_t count) const noexcept {
  const std::vector<request_outcome>& slots = client_->slots;
  const auto each_slot = [&](const auto& apply) {
    for (std::size_t i = 0; i < count; ++i)
      if (const std::size_t slot = (first_sequence + i) % kDedupeWindow; slot < slots.size()) apply(slots[slot]);
  };
  each_slot([](const request_outcome& one) { __builtin_prefetch(&one, 1); });
  each_slot([](const request_outcome& one) { __builtin_prefetch(one.items.data(), 1); });
}

bool requests::turn::is_new(std::uint64_t sequence) const noexcept {
  const std::size_t slot = sequence % kDedupeWindow;
  return slot >= client_->slots.size() || client_->slots[slot].sequence < sequence;
}

void requests::turn::remember(std::uint64_t sequence, durability reached, std::uint16_t group, version_t version,
                              std::uint32_t crc) {
  const std::size_t slot = sequence % kDedupeWindow;
  if (client_->slots.size() <= slot) client_->slots.resize(slot + 1);
  request_outcome& known = client_->slots[slot];
  client_->items += 1, client_->items -= known.items.size();
  if (known.items.size() > 1) std::vector<request_outcome::item>().swap(known.items);
  known.sequence = sequence;
  known.reached = reached;
  known.group = group;
  known.is_remote = false;
  known.items.assign(1, {0, version, crc});  // reuses the memory of the previous outcome
  limit_items(*client_);
}

result<std::optional<request_outcome>> requests::find(const request_key& request) {
  const use known(group_of(request.client), request.client);
  if (status read = read_if_stored(request.client, *known); !read) return std::move(read).error();
  const window& client = *known;
  const std::size_t slot = request.sequence % kDedupeWindow;
  if (slot >= client.slots.size() || client.slots[slot].sequence < request.sequence) return std::optional<request_outcome>{};
  if (client.slots[slot].sequence == request.sequence && !client.slots[slot].items.empty())
    return std::optional<request_outcome>(client.slots[slot]);
  return failure{EINVAL,
                 format("store: request %llu arrived after its client's request %llu, so its outcome is no longer known",
                        static_cast<unsigned long long>(request.sequence),
                        static_cast<unsigned long long>(client.slots[slot].sequence))};
}

void requests::remember(const request_key& request, request_outcome outcome) {
  const use known(group_of(request.client), request.client);
  set_slot(*known, std::move(outcome));
}

status requests::each(const std::function<bool(std::uint16_t)>& selected,
                      const std::function<void(std::uint64_t, const request_outcome&)>& tell) {
  for (group& client_group : groups_) {
    for (const std::uint64_t client : client_group.seen()) {
      window known;
      {
        const client_lock held(client_mutex_of(client));
        const std::lock_guard lock(client_group.mutex);
        const auto found = client_group.clients.find(client);
        if (found == client_group.clients.end()) continue;
        known.slots = found->second.slots;
        known.in_index = found->second.in_index;
      }
      if (known.in_index && known.slots.empty())
        if (status read = read_window(client, known); !read) return read;
      for (const request_outcome& one : known.slots)
        if (one.sequence != 0 && !one.items.empty() && one.group != kAnyGroup && selected(one.group)) tell(client, one);
    }
  }
  return {};
}

status requests::forget(const std::function<bool(std::uint16_t)>& selected) {
  const auto goes = [&](std::uint16_t number) { return number == kAnyGroup || selected(number); };
  for (group& client_group : groups_) {
    for (const std::uint64_t client : client_group.seen()) {
      const client_lock held(client_mutex_of(client));
      const std::lock_guard lock(client_group.mutex);
      const auto found = client_group.clients.find(client);
      if (found == client_group.clients.end()) continue;
      for (request_outcome& one : found->second.slots) {
        if (one.sequence == 0 || !goes(one.group)) continue;
        found->second.items -= one.items.size();
        client_group.items -= one.items.size();
        one = {};
      }
    }
  }
  rocksdb::WriteBatch batch;
  status scanned = index_.scan(family::requests, {}, {}, false, [&](std::string_view key, std::string_view raw) {
    const auto outcome = decode_outcome(raw);
    // An unreadable record comes from another release. It is erased too, so that the other release does not trust it
    // later.
    if (!outcome || goes(outcome->group)) index_.erase(batch, family::requests, key);
    return true;
  });
  if (!scanned || batch.Count() == 0) return scanned;
  return index_.write(batch, true);
}

void requests::store(rocksdb::WriteBatch& batch, const request_key& request, const request_outcome& outcome) {
  group& client_group = group_of(request.client);
  const std::lock_guard lock(client_group.mutex);
  need(client_group, request.client).in_index = true;
  for (const std::uint64_t client : client_group.forgotten) {
    if (client != request.client) index_.erase_range(batch, family::requests, client_key(client), client_key(client + 1));
  }
  client_group.forgotten.clear();
  index_.put(batch, family::requests, slot_key(request), encode(outcome));
}

}  // namespace pl::store
