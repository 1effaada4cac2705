// SPDX-License-Identifier: Apache-2.0
// Which servers of a cluster have which keys (docs/store-cluster.md).
//
// A key's slot is CRC-16/XMODEM of its bytes, modulo 16384. Slots are placed in units of 64 neighbours, in one table for
// each number of copies that a pool may ask for, so that the placement of a pool with three copies is independent of others.
// Plain values and pure functions; a map is changed only by who wrote it to etcd, with the next epoch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
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

struct cluster_server {
  enum class role : std::uint8_t {
    active,   // holds slots
    leaving,  // its slots move to others
    out,      // holds none and gets none
  };
  std::string endpoint;  // "host:port" that clients and other servers reach
  role assigned_role = role::active;
  bool down = false;           // was away for so long that its slots were given to others
  std::uint64_t run = 0;       // random, another one each time the server joins
  std::string socket;          // path of its unix socket, on its host; empty: none
  std::uint64_t instance = 0;  // what it says of itself in its greeting: who is at that path is it, or not
  std::string folder;          // identity of the data folder that holds its complete copies; empty: not known
  bool operator==(const cluster_server&) const = default;
};
const char* name_of(cluster_server::role role) noexcept;

// A complete copy in a data folder that its server has no more: "NAME#FOLDER" stands for it among a placement's copies. No
// server has such a name, so it counts as one that is away; it is NAME again when NAME comes with that folder.
inline constexpr char kFolderMark = '#';
std::string left_in(std::string_view server, std::string_view folder);
// The server's name of such a copy; empty: it is none.
std::string_view server_of_left(std::string_view copy);

// Where a unit's keys are, by servers' names.
struct placement {
  std::vector<std::string> copies;   // complete ones; the first serves clients
  std::vector<std::string> joining;  // being filled; get every write too
  bool operator==(const placement&) const = default;
  bool has(std::string_view server) const;
  bool fills(std::string_view server) const;
};

struct cluster_map {
  std::uint64_t epoch = 0;  // greater with each change; 0: there is no map
  std::uint64_t id = 0;     // random, the same for as long as there is a map; 0: a server of an earlier release wrote it
  std::map<std::string, cluster_server> servers;
  std::array<placement, kPlacements> units;

  // "host:port" of who serves the key; empty: nobody.
  std::string endpoint_for(unsigned copies, std::string_view key) const;
  // What the key waits for and what can be done, where a complete copy is in a data folder that is not there; else empty.
  std::string why_waiting(unsigned copies, std::string_view key) const;
};

// JSON; neighbours that are placed alike share a line.
std::string to_text(const cluster_map& map);
// EPROTO: not such a text.
result<cluster_map> read_cluster_map(std::string_view text);

}  // namespace pl::store_client
