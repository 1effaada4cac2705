// SPDX-License-Identifier: Apache-2.0
#include "store/client/slot_map.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.hpp"

namespace pl::store_client {
namespace {

using json = nlohmann::json;

constexpr std::array<std::uint16_t, 256> crc16_table() {
  std::array<std::uint16_t, 256> out{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000u) != 0 ? (crc << 1) ^ 0x1021u : crc << 1;
    out[byte] = static_cast<std::uint16_t>(crc);
  }
  return out;
}
constexpr auto kCrc16 = crc16_table();

constexpr const char* kRoles[] = {"in", "leaving", "out"};

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool read_names(const json& object, std::vector<std::string>& parsed) {
  if (!object.is_array()) return false;
  for (const auto& one : object) {
    if (!one.is_string()) return false;
    parsed.push_back(one.get<std::string>());
  }
  return true;
}

bool read_server(const json& object, cluster_server& parsed) {
  if (!object.is_object() || !object.value("endpoint", json()).is_string() ||
      !object.value("run", json()).is_number_unsigned())
    return false;
  parsed.endpoint = object["endpoint"].get<std::string>();
  parsed.run = object["run"].get<std::uint64_t>();
  parsed.down = object.value("down", json(false)) == json(true);
  if (const json socket = object.value("socket", json("")); socket.is_string()) parsed.socket = socket.get<std::string>();
  // The instance behind the socket; written only together with a socket.
  if (const json instance = object.value("instance", json(0u)); instance.is_number_unsigned() && !parsed.socket.empty())
    parsed.instance = instance.get<std::uint64_t>();
  if (const json folder = object.value("folder", json("")); folder.is_string()) parsed.folder = folder.get<std::string>();
  for (std::size_t i = 0; i < std::size(kRoles); ++i) {
    if (object.value("role", json()) != json(kRoles[i])) continue;
    parsed.assigned_role = static_cast<cluster_server::role>(i);
    return true;
  }
  return false;
}

// The slots [first, last] of a row as units of its table.
std::optional<std::pair<unsigned, unsigned>> units_of(const json& row) {
  const json slots = row.value("slots", json());
  if (!slots.is_array() || slots.size() != 2 || !slots[0].is_number_unsigned() || !slots[1].is_number_unsigned())
    return std::nullopt;
  const auto first = slots[0].get<std::uint64_t>(), last = slots[1].get<std::uint64_t>();
  if (first > last || last >= kSlots || first % kUnitSlots != 0 || last % kUnitSlots != kUnitSlots - 1) return std::nullopt;
  return std::pair(static_cast<unsigned>(first / kUnitSlots), static_cast<unsigned>(last / kUnitSlots));
}

bool read_row(const json& row, cluster_map& parsed) {
  if (!row.is_object() || !row.value("copies", json()).is_number_unsigned()) return false;
  const auto copies = row["copies"].get<std::uint64_t>();
  const auto units = units_of(row);
  placement entry;
  if (copies < 1 || copies > kMaxCopies || !units || !read_names(row.value("on", json()), entry.copies) ||
      !read_names(row.value("joining", json::array()), entry.joining))
    return false;
  for (unsigned unit = units->first; unit <= units->second; ++unit) parsed.units[(copies - 1) * kUnits + unit] = entry;
  return true;
}

}  // namespace

unsigned slot_of(std::string_view key) noexcept {
  unsigned crc = 0;
  for (const char one : key) crc = ((crc << 8) & 0xffffu) ^ kCrc16[(crc >> 8) ^ static_cast<unsigned char>(one)];
  return crc % kSlots;
}

std::string to_bytes(const unit_list& units) {
  std::string out(kUnits / 8, '\0');
  for (std::size_t i = 0; i < units.size(); ++i)
    if (units[i]) out[i / 8] = static_cast<char>(out[i / 8] | 1 << i % 8);
  return out;
}

std::optional<unit_list> unit_list_in(std::string_view bytes) {
  if (bytes.size() != kUnits / 8) return std::nullopt;
  unit_list out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (bytes[i / 8] >> i % 8 & 1) != 0;
  return out;
}

const char* name_of(cluster_server::role role) noexcept { return kRoles[static_cast<std::size_t>(role)]; }

std::string left_in(std::string_view server, std::string_view folder) {
  return std::string(server).append(1, kFolderMark).append(folder);
}
std::string_view server_of_left(std::string_view copy) {
  const auto mark = copy.find(kFolderMark);
  return mark == std::string_view::npos ? std::string_view() : copy.substr(0, mark);
}

bool placement::has(std::string_view server) const { return contains(copies, server); }
bool placement::fills(std::string_view server) const { return contains(joining, server); }

std::string cluster_map::endpoint_for(unsigned copies, std::string_view key) const {
  if (copies < 1 || copies > kMaxCopies) return {};
  const placement& entry = units[unit_of(copies, key)];
  if (entry.copies.empty()) return {};
  const auto found = servers.find(entry.copies.front());
  return found == servers.end() ? std::string() : found->second.endpoint;
}

std::string cluster_map::why_waiting(unsigned copies, std::string_view key) const {
  if (copies < 1 || copies > kMaxCopies) return {};
  std::string copies_left, away;
  for (const auto& one : units[unit_of(copies, key)].copies) {
    const std::string server(server_of_left(one));
    if (!copies_left.empty()) copies_left += ", or ";
    if (server.empty()) copies_left += "server " + one;
    else
      copies_left +=
          format("data folder %s of server %s, which has another one now", one.c_str() + server.size() + 1, server.c_str());
    if (away.empty()) away = server;
  }
  if (away.empty()) return {};
  return format(
      "slot %u waits for a complete copy: %s. Start what is away, or put that disk back, or give up what only it "
      "had: peerlane store cluster accept-loss %s",
      slot_of(key), copies_left.c_str(), away.c_str());
}

std::string to_text(const cluster_map& map) {
  json servers = json::object();
  for (const auto& [name, one] : map.servers) {
    servers[name] = {{"endpoint", one.endpoint}, {"role", name_of(one.assigned_role)}, {"down", one.down}, {"run", one.run}};
    if (!one.folder.empty()) servers[name]["folder"] = one.folder;
    if (!one.socket.empty()) servers[name].update(json{{"socket", one.socket}, {"instance", one.instance}});
  }
  json rows = json::array();
  for (unsigned copies = 1; copies <= kMaxCopies; ++copies) {
    const placement* table = &map.units[(copies - 1) * kUnits];
    for (unsigned first = 0, last = 0; first < kUnits; first = last) {
      while (last < kUnits && table[last] == table[first]) ++last;
      json row = {{"copies", copies}, {"slots", {first * kUnitSlots, last * kUnitSlots - 1}}, {"on", table[first].copies}};
      if (!table[first].joining.empty()) row["joining"] = table[first].joining;
      rows.push_back(std::move(row));
    }
  }
  json whole = {{"epoch", map.epoch}, {"servers", servers}, {"slots", rows}};
  if (map.id != 0) whole["id"] = map.id;
  return whole.dump();
}

result<cluster_map> read_cluster_map(std::string_view text) {
  const failure bad{EPROTO, "not a slot map"};
  const json whole = json::parse(text, nullptr, false);
  if (whole.is_discarded() || !whole.is_object() || !whole.value("epoch", json()).is_number_unsigned()) return bad;
  cluster_map out;
  out.epoch = whole["epoch"].get<std::uint64_t>();
  if (const json id = whole.value("id", json(0u)); id.is_number_unsigned()) out.id = id.get<std::uint64_t>();
  const json servers = whole.value("servers", json()), rows = whole.value("slots", json());
  if (!servers.is_object() || !rows.is_array()) return bad;
  for (const auto& [name, one] : servers.items())
    if (!read_server(one, out.servers[name])) return bad;
  for (const json& row : rows)
    if (!read_row(row, out)) return bad;
  return out;
}

}  // namespace pl::store_client
