// SPDX-License-Identifier: Apache-2.0
// Remembers what clients' last requests did, so that a repeated request is answered again and applied once. Each client
// has a ring of kDedupeWindow entries. When there are too many clients, the ring of the one that was idle longest is
// forgotten as a whole. A batch has an item for each of its operations; items have limits of their own, so batches are
// forgotten earlier.
//
// There are two kinds of locks. lock() holds off other requests of the same client (and of one in 256 others) for the
// duration of a request. The mutex of a group guards its lists for a moment, and is the last in the lock order, after
// those of the table's shards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arch/short_mutex.hpp"
#include "store/engine/index.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class requests {
  struct window {
    std::vector<request_outcome> slots;  // sequence 0: empty; no items: its outcome is forgotten
    std::size_t items = 0;               // of all slots
    bool in_index = false;               // the index may have entries that are not here
    // Guarded by the group's mutex; the members above belong to whoever has lock() and a `use`.
    unsigned users = 0;
    std::list<std::uint64_t>::iterator recent;
  };
  struct group {
    short_mutex mutex;
    std::unordered_map<std::uint64_t, window> clients;
    std::list<std::uint64_t> recent;       // the front was seen last
    std::vector<std::uint64_t> forgotten;  // forgotten here, but still in the index
    std::size_t items = 0;                 // of all clients, except for changes in windows that are in use
    std::vector<std::uint64_t> seen() {    // clients in the order in which they were last seen
      const std::lock_guard lock(mutex);
      return {recent.rbegin(), recent.rend()};
    }
  };
  // A client's window, created if there is none. It is not forgotten while this object lives.
  class use {
   public:
    use(group& its_group, std::uint64_t client);
    use(use&& other) noexcept
        : group_(std::exchange(other.group_, nullptr)), window_(other.window_), counted_items_(other.counted_items_) {}
    use& operator=(use&&) = delete;
    ~use();
    window& operator*() const noexcept { return *window_; }
    window* operator->() const noexcept { return window_; }

   private:
    group* group_;
    window* window_;
    std::size_t counted_items_;
  };

 public:
  static constexpr std::size_t kMaxClients = 4096;
  static constexpr std::size_t kGroups = 16;
  static constexpr std::size_t kMaxItems = std::size_t{128} << 10;  // of one client: 32 of the longest batches
  // as many as full rings of single requests have
  static constexpr std::size_t kMaxGroupItems = std::size_t{256} << 10;
  static_assert(kMaxGroupItems >= kMaxClients / kGroups * kDedupeWindow);

  explicit requests(index& records) : index_(records) {}
  // At start: reads which clients the index remembers. Their entries are read when they first send a request.
  status load();

  using client_lock = std::unique_lock<short_mutex>;
  // Holds off other requests of the client; required for find, remember and store.
  client_lock lock(const request_key& request) { return client_lock(client_mutex_of(request.client)); }
  // The outcome of this request if it was done. EINVAL: it is older than the window, so its outcome is forgotten.
  result<std::optional<request_outcome>> find(const request_key& request);
  void remember(const request_key& request, request_outcome outcome);

  // Several requests of one client under one lock(), with one lookup of the client.
  class turn {
   public:
    // Prefetches what the next two calls need for `count` requests.
    void fetch(std::uint64_t first_sequence, std::size_t count) const noexcept;
    // Whether nothing is known of this request, nor of a later one in its slot: it has to be done.
    bool is_new(std::uint64_t sequence) const noexcept;
    // Remembers a request with one operation that succeeded in memory alone.
    void remember(std::uint64_t sequence, durability reached, std::uint16_t group, version_t version, std::uint32_t crc);

   private:
    friend class requests;
    turn(client_lock lock, use client) : lock_(std::move(lock)), client_(std::move(client)) {}
    client_lock lock_;
    use client_;
  };
  result<turn> lock_client(std::uint64_t client);

  // Calls `tell` with every stored outcome of these groups, ending with the client seen last. Outcomes stored meanwhile
  // may be missed. Blocking. Precondition: the caller does not have lock().
  status each(const std::function<bool(std::uint16_t group)>& selected,
              const std::function<void(std::uint64_t client, const request_outcome& outcome)>& tell);

  // Forgets the requests of these groups, also in the index. Blocking. Precondition: the caller does not have lock(),
  // and no request of the groups is in progress.
  status forget(const std::function<bool(std::uint16_t group)>& selected);

  // The same as records of a batch, including the clients that are forgotten for it.
  void store(rocksdb::WriteBatch& batch, const request_key& request, const request_outcome& outcome);

  // For tests: number of items remembered in memory.
  std::size_t items();

 private:
  group& group_of(std::uint64_t client) { return groups_[client % kGroups]; }
  short_mutex& client_mutex_of(std::uint64_t client) { return turns_[client / kGroups % kTurns].mutex; }
  static window& need(group& client_group, std::uint64_t client);
  static bool forget_oldest_client(group& client_group);
  status read_if_stored(std::uint64_t client, window& destination);
  static void set_slot(window& destination, request_outcome outcome);
  static void limit_items(window& destination);
  status read_window(std::uint64_t client, window& destination);

  index& index_;
  std::array<group, kGroups> groups_;
  static constexpr std::size_t kTurns = 256;
  struct alignas(64) client_turn {
    short_mutex mutex;
  };
  std::array<client_turn, kTurns> turns_;
};

}  // namespace pl::store
