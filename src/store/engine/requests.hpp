// SPDX-License-Identifier: Apache-2.0
// What clients' last requests did, so that one that comes twice is answered twice and done once. A client has a ring of
// kDedupeWindow entries; the ring of a client that was not seen for long is forgotten as a whole when there are too many.
// A batch has an item for each of its operations; items have limits of their own, so that batches are forgotten earlier.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/engine/index.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class requests {
  struct window;
  struct group;

 public:
  static constexpr std::size_t kMaxClients = 4096;
  static constexpr std::size_t kGroups = 16;
  static constexpr std::size_t kMaxItems = std::size_t{128} << 10;       // of one client: 32 of the longest batches
  static constexpr std::size_t kMaxGroupItems = std::size_t{256} << 10;  // as many as full rings of single requests have
  static_assert(kMaxGroupItems >= kMaxClients / kGroups * kDedupeWindow);

  explicit requests(index& records) : index_(records) {}
  // At start: which clients the index remembers. Their entries are read when they come.
  status load();

  // Holds off other requests of clients in the same group; find and remember need it.
  std::unique_lock<std::mutex> lock(const request_key& request) { return std::unique_lock(group_of(request.client).mutex); }
  // What this request did, if it was done. EINVAL: it is older than what is remembered, so its outcome is gone.
  result<std::optional<request_outcome>> find(const request_key& request);
  void remember(const request_key& request, request_outcome outcome);

  // Requests of one client, by one call: its group stays locked as long as this lives, and the client is looked up once.
  class turn {
   public:
    // Whether nothing is known of the request, nor of later ones in its place: it is to be done.
    bool is_new(std::uint64_t sequence) const noexcept;
    // A request with one operation, which succeeded in memory alone.
    void remember(std::uint64_t sequence, durability reached, std::uint16_t group, version_t version, std::uint32_t crc);

   private:
    friend class requests;
    turn(std::unique_lock<std::mutex> lock, group& its_group, window& client)
        : lock_(std::move(lock)), group_(its_group), client_(client) {}
    std::unique_lock<std::mutex> lock_;
    group& group_;
    window& client_;
  };
  result<turn> take_turn(std::uint64_t client);

  // Calls `tell` with every stored outcome of these groups; the client seen last comes last. Blocking.
  // Outcomes stored meanwhile may be missed. Precondition: no lock().
  status each(const std::function<bool(std::uint16_t group)>& selected,
              const std::function<void(std::uint64_t client, const request_outcome& outcome)>& tell);

  // Of these groups, also in the index. Blocking. Precondition: no lock(); requests of the groups are not under way.
  status forget(const std::function<bool(std::uint16_t group)>& selected);

  // The same as records of a batch, with the clients that are forgotten for it.
  void store(rocksdb::WriteBatch& batch, const request_key& request, const request_outcome& outcome);

  // For tests: items that are remembered in memory.
  std::size_t items();

 private:
  struct window {
    std::vector<request_outcome> slots;  // sequence 0: empty; without items: what it did is forgotten
    std::size_t items = 0;               // of all slots
    bool in_index = false;               // entries may be there that are not here
    std::list<std::uint64_t>::iterator recent;
  };
  struct group {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, window> clients;
    std::list<std::uint64_t> recent;       // front: seen last
    std::vector<std::uint64_t> forgotten;  // in the index still
    std::size_t items = 0;                 // of all clients
  };
  group& group_of(std::uint64_t client) { return groups_[client % kGroups]; }
  window& need(group& client_group, std::uint64_t client);
  static void forget_oldest_client(group& client_group);
  result<window*> find_window(group& client_group, std::uint64_t client);
  static void set_slot(window& destination, request_outcome outcome);
  static void limit_items(window& destination);
  status read_window(std::uint64_t client, window& destination);

  index& index_;
  std::array<group, kGroups> groups_;
};

}  // namespace pl::store
