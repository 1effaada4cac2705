// SPDX-License-Identifier: Apache-2.0
// The tail's fields, one line in each direction a field, and the lists that bodies hold.
#include <limits>

#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_wire {
namespace {

enum field : std::uint16_t {
  kOutcome = 1,
  kText = 2,
  kToken = 3,
  kExtents = 4,
  kUnpin = 5 | kMandatory,
  kSequence = 6 | kMandatory,
  kCondition = 7 | kMandatory,
  kDurability = 8 | kMandatory,
  kCrc = 9 | kMandatory,
  kUserFlags = 10 | kMandatory,
  kSettings = 11 | kMandatory,
  kHello = 12,
  kPrefix = 13 | kMandatory,
  kRegex = 14 | kMandatory,
  kAfter = 15 | kMandatory,
  kArena = 16,
  kEpoch = 17,
  kCopy = 18 | kMandatory,
  kLane = 19,
  kLaneName = 20,
};

void add(std::string& out, std::uint16_t type, std::string_view bytes) {
  append_le(out, type);
  append_le(out, static_cast<std::uint16_t>(bytes.size()));
  out.append(bytes);
}

template <class... Numbers>
std::string packed(Numbers... numbers) {
  std::string out;
  (append_le(out, numbers), ...);
  return out;
}

template <class... Numbers>
void add_numbers(std::string& out, std::uint16_t type, Numbers... numbers) {
  append_le(out, type);
  append_le(out, static_cast<std::uint16_t>((sizeof(numbers) + ...)));
  (append_le(out, numbers), ...);
}

std::string pack_settings(const pool_settings& what) {
  return packed(what.size_bytes, what.max_keys, static_cast<std::uint8_t>(what.level),
                static_cast<std::uint8_t>(what.is_cache), static_cast<std::uint8_t>(what.allow_shm), what.copies) +
         what.access;
}

// False, and `out` as it was: a number without a meaning, which goes no further than this.
template <class Enum>
bool read_enum(byte_reader& in, Enum last, Enum& out) {
  const auto raw = in.number<std::uint8_t>();
  if (raw > static_cast<std::uint8_t>(last)) return false;
  out = static_cast<Enum>(raw);
  return true;
}

bool read_level(byte_reader& in, durability& out) {
  const auto level = store::durability_from(in.number<std::uint8_t>());
  if (level) out = *level;
  return level.has_value();
}

bool read_settings(byte_reader& in, pool_settings& out) {
  out.size_bytes = in.number<std::uint64_t>();
  out.max_keys = in.number<std::uint64_t>();
  const bool known = read_level(in, out.level);
  out.is_cache = in.number<std::uint8_t>() != 0;
  out.allow_shm = in.number<std::uint8_t>() != 0;
  out.copies = in.number<std::uint8_t>();
  out.access = in.rest();
  return known;
}

bool read_outcome(byte_reader& in, outcome& out) {
  out.version = in.number<std::uint64_t>();
  out.crc = in.number<std::uint32_t>();
  out.has_crc = in.number<std::uint8_t>() != 0;
  bool known = read_enum(in, path::last, out.way);
  known = read_level(in, out.reached) && known;
  out.server_ns = in.number<std::uint64_t>();
  out.user_flags = in.number<std::uint32_t>();
  out.value_bytes = in.number<std::uint64_t>();
  out.written_unix_ns = in.number<std::int64_t>();
  out.repeated = in.number<std::uint8_t>() != 0;
  out.copies = in.number<std::uint8_t>();
  return known;
}

template <class T>
void read_list(byte_reader& in, std::vector<T>& out) {
  while (in.ok() && !in.at_end()) out.push_back(in.number<T>());
}

void read_extents(byte_reader& in, std::vector<extent>& out) {
  while (in.ok() && !in.at_end()) {
    extent one;
    one.offset = in.number<std::uint64_t>();
    one.bytes = in.number<std::uint64_t>();
    out.push_back(one);
  }
}

hello read_hello(byte_reader& in) {
  hello out;
  out.lowest_version = in.number<std::uint16_t>();
  out.highest_version = in.number<std::uint16_t>();
  out.capabilities = in.number<std::uint64_t>();
  out.instance = in.number<std::uint64_t>();
  out.session = in.number<std::uint64_t>();
  out.agent = in.rest();
  return out;
}

lane_offer read_lane(byte_reader& in) {
  lane_offer out;
  out.major = in.number<std::uint16_t>();
  out.minor = in.number<std::uint16_t>();
  for (auto& one : out.secret) one = in.number<std::uint64_t>();
  out.any_transport = in.number<std::uint8_t>() != 0;
  out.address = in.take(in.number<std::uint16_t>());
  out.transports = in.rest();
  return out;
}

// False: the field is not known, or holds a number without a meaning.
bool read_field(std::uint16_t type, byte_reader& in, tail& out) {
  switch (type) {
    case kOutcome:
      return read_outcome(in, out.result.emplace());
    case kText:
      out.text.emplace(in.rest());
      return true;
    case kToken:
      out.token = in.number<std::uint64_t>();
      return true;
    case kExtents:
      read_extents(in, out.extents);
      return true;
    case kUnpin:
      read_list(in, out.unpin);
      return true;
    case kSequence: {
      auto& who = out.who.emplace();
      who.client = in.number<std::uint64_t>();
      who.number = in.number<std::uint64_t>();
      return true;
    }
    case kCondition: {
      auto& only = out.only.emplace();
      const bool known = read_enum(in, condition::if_version, only.kind);
      only.version = in.number<std::uint64_t>();
      return known;
    }
    case kDurability:
      return read_level(in, out.level.emplace(durability::pool_default));
    case kCrc:
      out.crc = in.number<std::uint32_t>();
      return true;
    case kUserFlags:
      out.user_flags = in.number<std::uint32_t>();
      return true;
    case kSettings:
      return read_settings(in, out.settings.emplace());
    case kHello:
      out.greeting = read_hello(in);
      return true;
    case kPrefix:
      out.prefix.emplace(in.rest());
      return true;
    case kRegex:
      out.regex.emplace(in.rest());
      return true;
    case kAfter:
      out.after.emplace(in.rest());
      return true;
    case kArena: {
      auto& memory = out.memory.emplace();
      memory.size_bytes = in.number<std::uint64_t>();
      memory.chunk_bytes = in.number<std::uint64_t>();
      memory.read_only = in.number<std::uint8_t>() != 0;
      return true;
    }
    case kEpoch:
      out.epoch = in.number<std::uint64_t>();
      return true;
    case kCopy: {
      auto& copy = out.copy.emplace();
      copy.epoch = in.number<std::uint64_t>();
      copy.sender = in.number<std::uint64_t>();
      copy.version = in.number<std::uint64_t>();
      copy.replaces = in.number<std::uint64_t>();
      return true;
    }
    case kLane:
      out.lane = read_lane(in);
      return true;
    case kLaneName:
      out.lane_name.emplace(in.rest());
      return true;
    default:
      in.rest();
      return false;
  }
}

void add_outcome(std::string& out, const outcome& what) {
  add_numbers(out, kOutcome, what.version, what.crc, static_cast<std::uint8_t>(what.has_crc),
              static_cast<std::uint8_t>(what.way), static_cast<std::uint8_t>(what.reached), what.server_ns, what.user_flags,
              what.value_bytes, what.written_unix_ns, static_cast<std::uint8_t>(what.repeated), what.copies);
}

void add_lists(std::string& out, const tail& fields) {
  std::string list;
  for (const auto& one : fields.extents) list += packed(one.offset, one.bytes);
  if (!list.empty()) add(out, kExtents, list);
  list.clear();
  for (const auto one : fields.unpin) append_le(list, one);
  if (!list.empty()) add(out, kUnpin, list);
}

}  // namespace

std::string encode_tail(const tail& fields) {
  std::string out;
  if (fields.result) add_outcome(out, *fields.result);
  if (fields.text) add(out, kText, *fields.text);
  if (fields.token) add_numbers(out, kToken, *fields.token);
  if (fields.who) add_numbers(out, kSequence, fields.who->client, fields.who->number);
  if (fields.only) add_numbers(out, kCondition, static_cast<std::uint8_t>(fields.only->kind), fields.only->version);
  if (fields.level) add_numbers(out, kDurability, static_cast<std::uint8_t>(*fields.level));
  if (fields.crc) add_numbers(out, kCrc, *fields.crc);
  if (fields.user_flags) add_numbers(out, kUserFlags, *fields.user_flags);
  if (fields.settings) add(out, kSettings, pack_settings(*fields.settings));
  if (const auto& hi = fields.greeting)
    add(out, kHello,
        packed(hi->lowest_version, hi->highest_version, hi->capabilities, hi->instance, hi->session) + hi->agent);
  if (fields.prefix) add(out, kPrefix, *fields.prefix);
  if (fields.regex) add(out, kRegex, *fields.regex);
  if (fields.after) add(out, kAfter, *fields.after);
  if (const auto& memory = fields.memory)
    add_numbers(out, kArena, memory->size_bytes, memory->chunk_bytes, static_cast<std::uint8_t>(memory->read_only));
  if (fields.epoch) add_numbers(out, kEpoch, *fields.epoch);
  if (const auto& copy = fields.copy) add_numbers(out, kCopy, copy->epoch, copy->sender, copy->version, copy->replaces);
  if (const auto& lane = fields.lane)
    add(out, kLane,
        packed(lane->major, lane->minor, lane->secret[0], lane->secret[1], static_cast<std::uint8_t>(lane->any_transport),
               static_cast<std::uint16_t>(lane->address.size())) +
            lane->address + lane->transports);
  if (fields.lane_name) add(out, kLaneName, *fields.lane_name);
  add_lists(out, fields);
  return out;
}

result<tail> decode_tail(std::string_view bytes) {
  tail out;
  byte_reader all(bytes);
  while (!all.at_end()) {
    const auto type = all.number<std::uint16_t>();
    const auto length = all.number<std::uint16_t>();
    byte_reader field(all.take(length));
    if (!all.ok()) return failure{EPROTO, "store protocol: a field reaches past the end of its frame"};
    const bool known = read_field(type, field, out);
    if (!known && (type & kMandatory) != 0)
      return failure{EPROTO,
                     format("store protocol: field 0x%x is not understood here: use the same release at both ends", type)};
    // A longer field than this end knows comes from a newer one; a shorter one is damage.
    if (!field.ok()) return failure{EPROTO, format("store protocol: field 0x%x is cut off", type)};
  }
  return out;
}

void append(std::string& body, const key_entry& one) {
  append_le(body, static_cast<std::uint16_t>(one.key.size()));
  append_le(body, one.value_bytes);
  append_le(body, one.version);
  body += one.key;
}

void append(std::string& body, const pool_entry& one) {
  const std::string settings = pack_settings(one.settings);
  append_le(body, static_cast<std::uint16_t>(one.name.size()));
  append_le(body, static_cast<std::uint16_t>(settings.size()));
  append_le(body, one.keys);
  append_le(body, one.bytes);
  body += one.name;
  body += settings;
}

result<std::vector<key_entry>> decode_keys(std::string_view body) {
  std::vector<key_entry> out;
  for (byte_reader in(body); !in.at_end();) {
    key_entry one;
    const auto length = in.number<std::uint16_t>();
    one.value_bytes = in.number<std::uint64_t>();
    one.version = in.number<std::uint64_t>();
    one.key = in.take(length);
    if (!in.ok()) return failure{EPROTO, "store protocol: a list of keys is cut off"};
    out.push_back(std::move(one));
  }
  return out;
}

result<std::vector<pool_entry>> decode_pools(std::string_view body) {
  std::vector<pool_entry> out;
  for (byte_reader in(body); !in.at_end();) {
    pool_entry one;
    const auto name_bytes = in.number<std::uint16_t>(), settings_bytes = in.number<std::uint16_t>();
    one.keys = in.number<std::uint64_t>();
    one.bytes = in.number<std::uint64_t>();
    one.name = in.take(name_bytes);
    byte_reader settings(in.take(settings_bytes));
    if (!in.ok() || !read_settings(settings, one.settings) || !settings.ok())
      return failure{EPROTO, "store protocol: a list of pools is cut off"};
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace pl::store_wire
