// SPDX-License-Identifier: Apache-2.0
// Which servers of a cluster have which keys (docs/store-cluster.md).
//
// A key's slot is CRC-16/XMODEM of its bytes, modulo 16384. Slots are placed in units of 64 adjacent slots, in one
// table for each number of copies that a pool may request, so that the placement of a pool with three copies is
// independent of others. Plain values and pure functions; only whoever wrote a map to etcd changes it, with the next
// epoch.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace pl::store_client {

inline constexpr unsigned kSlots = 16384;
inline constexpr unsigned kUnitSlots = 64;
inline constexpr unsigned kUnits = kSlots / kUnitSlots;
inline constexpr unsigned kMaxCopies = 3;
inline constexpr unsigned kPlacements = kUnits * kMaxCopies;

unsigned slot_of(std::string_view key) noexcept;
// Index into cluster_map::units. Precondition: 1 <= copies <= kMaxCopies.
inline unsigned unit_of(unsigned copies, std::string_view key) noexcept {
  return (copies - 1) * kUnits + slot_of(key) / kUnitSlots;
}
inline unsigned copies_of_unit(unsigned unit) noexcept { return unit / kUnits + 1; }

// Units of the pools with one number of copies.
using unit_list = std::bitset<kUnits>;
inline bool contains(const unit_list& units, std::string_view key) noexcept { return units[slot_of(key) / kUnitSlots]; }
std::string to_bytes(const unit_list& units);
// Nothing: the bytes are no list.
std::optional<unit_list> unit_list_in(std::string_view bytes);

struct cluster_server {
  enum class role : std::uint8_t {
    active,   // has slots
    leaving,  // its slots move to others
    out,      // has no slots and gets none
  };
  std::string endpoint;  // "host:port" for clients and other servers
  role assigned_role = role::active;
  bool down = false;           // it was away for so long that its slots were given to others
  std::uint64_t run = 0;       // random, changes each time the server joins
  std::string socket;          // path of its unix socket, on its host; empty: none
  std::uint64_t instance = 0;  // as in its handshake, which shows whether the server at that path is this one
  std::string folder;          // identity of the data folder that holds its complete copies; empty: unknown
  bool operator==(const cluster_server&) const = default;
};
const char* name_of(cluster_server::role role) noexcept;

// A complete copy in a data folder that its server no longer has is listed as "NAME#FOLDER" among a placement's copies.
// No server has such a name, so it counts as one that is away; it becomes NAME again when NAME returns with that
// folder.
inline constexpr char kFolderMark = '#';
std::string left_in(std::string_view server, std::string_view folder);
// The server's name of such a copy; empty if it is not such a copy.
std::string_view server_of_left(std::string_view copy);

// Where a unit's keys are, by server name.
struct placement {
  std::vector<std::string> copies;   // complete copies; the first one serves clients
  std::vector<std::string> joining;  // copies being filled, which get every write too
  bool operator==(const placement&) const = default;
  bool has(std::string_view server) const;
  bool fills(std::string_view server) const;
};

struct cluster_map {
  std::uint64_t epoch = 0;  // grows with each change; 0: there is no map
  std::uint64_t id = 0;     // random, constant while the map exists; 0: a server of an earlier release wrote it
  std::map<std::string, cluster_server> servers;
  std::array<placement, kPlacements> units;

  // "host:port" of the server for the key; empty if there is none.
  std::string endpoint_for(unsigned copies, std::string_view key) const;
  // If a complete copy is in a data folder that is missing: what the key waits for and what can be done. Otherwise
  // empty.
  std::string why_waiting(unsigned copies, std::string_view key) const;
};

// JSON; adjacent units with the same placement share a line.
std::string to_text(const cluster_map& map);
// EPROTO if the text is not a map.
result<cluster_map> read_cluster_map(std::string_view text);

}  // namespace pl::store_client
