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
  std::string from;
  for (bool more = true; more;) {
    more = false;
    status scanned = index_.scan(family::requests, from, {}, false, [&](std::string_view key, std::string_view) {
      const std::uint64_t client = std::uint64_t{read_ordered(key)} << 32 | read_ordered(key.substr(4));
      group& of = group_of(client);
      std::lock_guard lock(of.mutex);
      need(of, client).in_index = true;
      from = client_key(client + 1);
      more = client + 1 != 0;
      return false;
    });
    if (!scanned) return scanned;
  }
  return {};
}

requests::window& requests::need(group& of, std::uint64_t client) {
  const auto at = of.clients.find(client);
  if (at != of.clients.end()) {
    of.recent.splice(of.recent.begin(), of.recent, at->second.recent);
    return at->second;
  }
  if (of.clients.size() >= kMaxClients / kGroups) {
    const std::uint64_t oldest = of.recent.back();
    if (of.clients[oldest].in_index) of.forgotten.push_back(oldest);
    of.clients.erase(oldest);
    of.recent.pop_back();
  }
  window& made = of.clients[client];
  made.recent = of.recent.insert(of.recent.begin(), client);
  return made;
}

status requests::read_window(std::uint64_t client, window& into) {
  return index_.scan(family::requests, client_key(client), client_key(client + 1), false,
                     [&](std::string_view, std::string_view raw) {
                       auto outcome = decode_outcome(raw);
                       if (!outcome) return true;  // a layout of another version: as if forgotten
                       const std::size_t slot = outcome->sequence % kDedupeWindow;
                       if (into.slots.size() <= slot) into.slots.resize(slot + 1);
                       into.slots[slot] = std::move(*outcome);
                       return true;
                     });
}

result<std::optional<request_outcome>> requests::find(const request_key& request) {
  group& of = group_of(request.client);
  window& client = need(of, request.client);
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

status requests::each(const std::function<bool(std::uint16_t)>& which,
                      const std::function<void(std::uint64_t, const request_outcome&)>& tell) {
  for (group& of : groups_) {
    std::vector<std::uint64_t> clients;
    {
      const std::lock_guard lock(of.mutex);
      clients.assign(of.recent.rbegin(), of.recent.rend());
    }
    for (const std::uint64_t client : clients) {
      window known;
      {
        const std::lock_guard lock(of.mutex);
        const auto at = of.clients.find(client);
        if (at == of.clients.end()) continue;
        known.slots = at->second.slots;
        known.in_index = at->second.in_index;
      }
      if (known.in_index && known.slots.empty())
        if (status read = read_window(client, known); !read) return read;
      for (const request_outcome& one : known.slots)
        if (one.sequence != 0 && one.group != kAnyGroup && which(one.group)) tell(client, one);
    }
  }
  return {};
}

status requests::forget(const std::function<bool(std::uint16_t)>& which) {
  const auto goes = [&](std::uint16_t number) { return number == kAnyGroup || which(number); };
  for (group& of : groups_) {
    const std::lock_guard lock(of.mutex);
    for (auto& [client, remembered] : of.clients)
      for (request_outcome& one : remembered.slots)
        if (one.sequence != 0 && goes(one.group)) one = {};
  }
  rocksdb::WriteBatch batch;
  status scanned = index_.scan(family::requests, {}, {}, false, [&](std::string_view key, std::string_view raw) {
    const auto outcome = decode_outcome(raw);
    // What cannot be read is of another release. It goes, too: that release shall not believe it again after this.
    if (!outcome || goes(outcome->group)) index_.erase(batch, family::requests, key);
    return true;
  });
  if (!scanned || batch.Count() == 0) return scanned;
  return index_.write(batch, true);
}

void requests::store(rocksdb::WriteBatch& batch, const request_key& request, const request_outcome& outcome) {
  group& of = group_of(request.client);
  need(of, request.client).in_index = true;
  for (const std::uint64_t client : of.forgotten) {
    if (client != request.client) index_.erase_range(batch, family::requests, client_key(client), client_key(client + 1));
  }
  of.forgotten.clear();
  index_.put(batch, family::requests, slot_key(request), encode(outcome));
}

}  // namespace pl::store
