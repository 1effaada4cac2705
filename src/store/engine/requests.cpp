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

requests::window& requests::need(group& client_group, std::uint64_t client) {
  const auto found = client_group.clients.find(client);
  if (found != client_group.clients.end()) {
    client_group.recent.splice(client_group.recent.begin(), client_group.recent, found->second.recent);
    return found->second;
  }
  if (client_group.clients.size() >= kMaxClients / kGroups) {
    const std::uint64_t oldest = client_group.recent.back();
    if (client_group.clients[oldest].in_index) client_group.forgotten.push_back(oldest);
    client_group.clients.erase(oldest);
    client_group.recent.pop_back();
  }
  window& made = client_group.clients[client];
  made.recent = client_group.recent.insert(client_group.recent.begin(), client);
  return made;
}

status requests::read_window(std::uint64_t client, window& destination) {
  return index_.scan(family::requests, client_key(client), client_key(client + 1), false,
                     [&](std::string_view, std::string_view raw) {
                       auto outcome = decode_outcome(raw);
                       if (!outcome) return true;  // a layout of another version: as if forgotten
                       const std::size_t slot = outcome->sequence % kDedupeWindow;
                       if (destination.slots.size() <= slot) destination.slots.resize(slot + 1);
                       destination.slots[slot] = std::move(*outcome);
                       return true;
                     });
}

result<std::optional<request_outcome>> requests::find(const request_key& request) {
  group& client_group = group_of(request.client);
  window& client = need(client_group, request.client);
  if (client.in_index && client.slots.empty()) {
    if (status read = read_window(request.client, client); !read) return std::move(read).error();
  }
  const std::size_t slot = request.sequence % kDedupeWindow;
  if (slot >= client.slots.size() || client.slots[slot].sequence < request.sequence) return std::optional<request_outcome>{};
  if (client.slots[slot].sequence == request.sequence) return std::optional<request_outcome>(client.slots[slot]);
  return failure{EINVAL, format("store: request %llu came after its client's request %llu: what it did is forgotten",
                                static_cast<unsigned long long>(request.sequence),
                                static_cast<unsigned long long>(client.slots[slot].sequence))};
}

void requests::remember(const request_key& request, request_outcome outcome) {
  window& client = need(group_of(request.client), request.client);
  const std::size_t slot = request.sequence % kDedupeWindow;
  if (client.slots.size() <= slot) client.slots.resize(slot + 1);
  client.slots[slot] = std::move(outcome);
}

status requests::each(const std::function<bool(std::uint16_t)>& selected,
                      const std::function<void(std::uint64_t, const request_outcome&)>& tell) {
  for (group& client_group : groups_) {
    std::vector<std::uint64_t> clients;
    {
      const std::lock_guard lock(client_group.mutex);
      clients.assign(client_group.recent.rbegin(), client_group.recent.rend());
    }
    for (const std::uint64_t client : clients) {
      window known;
      {
        const std::lock_guard lock(client_group.mutex);
        const auto found = client_group.clients.find(client);
        if (found == client_group.clients.end()) continue;
        known.slots = found->second.slots;
        known.in_index = found->second.in_index;
      }
      if (known.in_index && known.slots.empty())
        if (status read = read_window(client, known); !read) return read;
      for (const request_outcome& one : known.slots)
        if (one.sequence != 0 && one.group != kAnyGroup && selected(one.group)) tell(client, one);
    }
  }
  return {};
}

status requests::forget(const std::function<bool(std::uint16_t)>& selected) {
  const auto goes = [&](std::uint16_t number) { return number == kAnyGroup || selected(number); };
  for (group& client_group : groups_) {
    const std::lock_guard lock(client_group.mutex);
    for (auto& [client, remembered] : client_group.clients)
      for (request_outcome& one : remembered.slots)
        if (one.sequence != 0 && goes(one.group)) one = {};
  }
  rocksdb::WriteBatch batch;
  status scanned = index_.scan(family::requests, {}, {}, false, [&](std::string_view key, std::string_view raw) {
    const auto outcome = decode_outcome(raw);
    // An unreadable record is of another release. It is erased too, so that the other release does not trust it later.
    if (!outcome || goes(outcome->group)) index_.erase(batch, family::requests, key);
    return true;
  });
  if (!scanned || batch.Count() == 0) return scanned;
  return index_.write(batch, true);
}

void requests::store(rocksdb::WriteBatch& batch, const request_key& request, const request_outcome& outcome) {
  group& client_group = group_of(request.client);
  need(client_group, request.client).in_index = true;
  for (const std::uint64_t client : client_group.forgotten) {
    if (client != request.client) index_.erase_range(batch, family::requests, client_key(client), client_key(client + 1));
  }
  client_group.forgotten.clear();
  index_.put(batch, family::requests, slot_key(request), encode(outcome));
}

}  // namespace pl::store
