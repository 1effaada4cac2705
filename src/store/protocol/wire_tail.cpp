// SPDX-License-Identifier: Apache-2.0
// The tail's fields: one line per field and direction, and the lists that bodies hold.
#include <limits>

#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_protocol {
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
  kUcxOffer = 19,
  kUcxTransports = 20,
  kCache = 21 | kMandatory,
  kCacheIs = 22,  // in answers: clients of earlier releases skip it
  kStatistics = 23,
  kTtl = 24 | kMandatory,
  kDevicePart = 25 | kMandatory,
  kOwner = 26,   // servers of earlier releases skip it
  kListed = 27,  // clients of earlier releases skip it
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
  // One append for all, because each costs as much as the rest.
  std::byte bytes[2 * sizeof(std::uint16_t) + (sizeof(numbers) + ...)];
  std::byte* next = bytes;
  const auto store = [&next](auto number) {
    put_le(next, number);
    next += sizeof number;
  };
  store(type);
  store(static_cast<std::uint16_t>((sizeof(numbers) + ...)));
  (store(numbers), ...);
  out.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

std::string pack_settings(const pool_settings& settings) {
  return packed(settings.size_bytes, settings.max_keys, static_cast<std::uint8_t>(settings.level),
                static_cast<std::uint8_t>(settings.is_cache), static_cast<std::uint8_t>(settings.allow_shm),
                settings.copies) +
         settings.access;
}

// Returns false for an undefined number; `out` keeps its value.
template <class Enum>
bool read_enum(byte_reader& reader, Enum last, Enum& out) {
  const auto raw = reader.number<std::uint8_t>();
  if (raw > static_cast<std::uint8_t>(last)) return false;
  out = static_cast<Enum>(raw);
  return true;
}

bool read_level(byte_reader& reader, durability& out) {
  const auto level = store::durability_from(reader.number<std::uint8_t>());
  if (level) out = *level;
  return level.has_value();
}

bool read_settings(byte_reader& reader, pool_settings& out) {
  out.size_bytes = reader.number<std::uint64_t>();
  out.max_keys = reader.number<std::uint64_t>();
  const bool known = read_level(reader, out.level);
  out.is_cache = reader.number<std::uint8_t>() != 0;
  out.allow_shm = reader.number<std::uint8_t>() != 0;
  out.copies = reader.number<std::uint8_t>();
  out.access = reader.rest();
  return known;
}

std::string pack_cache(const cache_settings& cache) {
  return packed(cache.memory_bytes, cache.disk_bytes, cache.ttl_ms, cache.policy);
}

cache_settings read_cache(byte_reader& reader) {
  cache_settings out;
  out.memory_bytes = reader.number<std::uint64_t>();
  out.disk_bytes = reader.number<std::uint64_t>();
  out.ttl_ms = reader.number<std::uint64_t>();
  out.policy = reader.number<std::uint8_t>();
  return out;
}

constexpr std::uint64_t pool_statistics::*kStatisticsFields[] = {
    &pool_statistics::keys,         &pool_statistics::bytes,         &pool_statistics::hits,    &pool_statistics::misses,
    &pool_statistics::evicted,      &pool_statistics::evicted_bytes, &pool_statistics::expired, &pool_statistics::spilled,
    &pool_statistics::memory_bytes, &pool_statistics::disk_bytes};

bool read_outcome(byte_reader& reader, outcome& out) {
  out.version = reader.number<std::uint64_t>();
  out.crc = reader.number<std::uint32_t>();
  out.has_crc = reader.number<std::uint8_t>() != 0;
  bool known = read_enum(reader, path::last, out.way);
  known = read_level(reader, out.reached) && known;
  out.server_ns = reader.number<std::uint64_t>();
  out.user_flags = reader.number<std::uint32_t>();
  out.value_bytes = reader.number<std::uint64_t>();
  out.written_unix_ns = reader.number<std::int64_t>();
  out.repeated = reader.number<std::uint8_t>() != 0;
  out.copies = reader.number<std::uint8_t>();
  return known;
}

template <class T>
void read_list(byte_reader& reader, std::vector<T>& out) {
  while (reader.ok() && !reader.at_end()) out.push_back(reader.number<T>());
}

void read_extents(byte_reader& reader, std::vector<extent>& out) {
  while (reader.ok() && !reader.at_end()) {
    extent one;
    one.offset = reader.number<std::uint64_t>();
    one.bytes = reader.number<std::uint64_t>();
    out.push_back(one);
  }
}

hello read_hello(byte_reader& reader) {
  hello out;
  out.lowest_version = reader.number<std::uint16_t>();
  out.highest_version = reader.number<std::uint16_t>();
  out.capabilities = reader.number<std::uint64_t>();
  out.instance = reader.number<std::uint64_t>();
  out.session = reader.number<std::uint64_t>();
  out.agent = reader.rest();
  return out;
}

ucx_offer read_ucx_offer(byte_reader& reader) {
  ucx_offer out;
  out.major = reader.number<std::uint16_t>();
  out.minor = reader.number<std::uint16_t>();
  for (auto& one : out.secret) one = reader.number<std::uint64_t>();
  out.any_transport = reader.number<std::uint8_t>() != 0;
  out.address = reader.take(reader.number<std::uint16_t>());
  out.transports = reader.rest();
  return out;
}

// Returns false if the field is unknown or holds an undefined number.
bool read_field(std::uint16_t type, byte_reader& reader, tail& out) {
  switch (type) {
    case kOutcome:
      return read_outcome(reader, out.result.emplace());
    case kText:
      out.text.emplace(reader.rest());
      return true;
    case kToken:
      out.token = reader.number<std::uint64_t>();
      return true;
    case kExtents:
      read_extents(reader, out.extents);
      return true;
    case kUnpin:
      read_list(reader, out.unpin);
      return true;
    case kSequence: {
      auto& sender = out.request_number.emplace();
      sender.client = reader.number<std::uint64_t>();
      sender.number = reader.number<std::uint64_t>();
      return true;
    }
    case kCondition: {
      auto& only = out.only.emplace();
      const bool known = read_enum(reader, condition::if_version, only.kind);
      only.version = reader.number<std::uint64_t>();
      return known;
    }
    case kDurability:
      return read_level(reader, out.level.emplace(durability::pool_default));
    case kCrc:
      out.crc = reader.number<std::uint32_t>();
      return true;
    case kUserFlags:
      out.user_flags = reader.number<std::uint32_t>();
      return true;
    case kSettings:
      return read_settings(reader, out.settings.emplace());
    case kHello:
      out.handshake = read_hello(reader);
      return true;
    case kPrefix:
      out.prefix.emplace(reader.rest());
      return true;
    case kRegex:
      out.regex.emplace(reader.rest());
      return true;
    case kAfter:
      out.after.emplace(reader.rest());
      return true;
    case kArena: {
      auto& memory = out.memory.emplace();
      memory.size_bytes = reader.number<std::uint64_t>();
      memory.chunk_bytes = reader.number<std::uint64_t>();
      memory.read_only = reader.number<std::uint8_t>() != 0;
      return true;
    }
    case kEpoch:
      out.epoch = reader.number<std::uint64_t>();
      return true;
    case kCopy: {
      auto& copy = out.copy.emplace();
      copy.epoch = reader.number<std::uint64_t>();
      copy.sender = reader.number<std::uint64_t>();
      copy.version = reader.number<std::uint64_t>();
      copy.replaces = reader.number<std::uint64_t>();
      return true;
    }
    case kUcxOffer:
      out.ucx = read_ucx_offer(reader);
      return true;
    case kCache:
      out.cache = read_cache(reader);
      return true;
    case kCacheIs:
      out.cache_is = read_cache(reader);
      return true;
    case kStatistics: {
      auto& now = out.statistics.emplace();
      for (const auto field : kStatisticsFields) now.*field = reader.number<std::uint64_t>();
      return true;
    }
    case kTtl:
      out.ttl_ms = reader.number<std::uint64_t>();
      return true;
    case kDevicePart: {
      auto& device = out.device.emplace();
      device.memory = reader.number<std::uint32_t>();
      device.slot = reader.number<std::uint32_t>();
      device.ticket = reader.number<std::uint64_t>();
      device.offset = reader.number<std::uint64_t>();
      return true;
    }
    case kOwner:
      out.owner.emplace(reader.rest());
      return true;
    case kListed:
      out.listed.emplace(reader.rest());
      return true;
    case kUcxTransports:
      out.ucx_transports.emplace(reader.rest());
      return true;
    default:
      reader.rest();
      return false;
  }
}

void add_outcome(std::string& out, const outcome& value_outcome) {
  add_numbers(out, kOutcome, value_outcome.version, value_outcome.crc, static_cast<std::uint8_t>(value_outcome.has_crc),
              static_cast<std::uint8_t>(value_outcome.way), static_cast<std::uint8_t>(value_outcome.reached),
              value_outcome.server_ns, value_outcome.user_flags, value_outcome.value_bytes, value_outcome.written_unix_ns,
              static_cast<std::uint8_t>(value_outcome.repeated), value_outcome.copies);
}

void add_lists(std::string& out, const tail& fields) {
  if (!fields.extents.empty()) {
    append_le(out, static_cast<std::uint16_t>(kExtents));
    append_le(out, static_cast<std::uint16_t>(fields.extents.size() * 2 * sizeof(std::uint64_t)));
    for (const auto& one : fields.extents) {
      append_le(out, one.offset);
      append_le(out, one.bytes);
    }
  }
  if (!fields.unpin.empty()) {
    append_le(out, static_cast<std::uint16_t>(kUnpin));
    append_le(out, static_cast<std::uint16_t>(fields.unpin.size() * sizeof(std::uint64_t)));
    for (const auto one : fields.unpin) append_le(out, one);
  }
}

}  // namespace

void append_tail(const tail& fields, std::string& out) {
  if (fields.result) add_outcome(out, *fields.result);
  if (fields.text) add(out, kText, *fields.text);
  if (fields.token) add_numbers(out, kToken, *fields.token);
  if (fields.request_number) add_numbers(out, kSequence, fields.request_number->client, fields.request_number->number);
  if (fields.only) add_numbers(out, kCondition, static_cast<std::uint8_t>(fields.only->kind), fields.only->version);
  if (fields.level) add_numbers(out, kDurability, static_cast<std::uint8_t>(*fields.level));
  if (fields.crc) add_numbers(out, kCrc, *fields.crc);
  if (fields.user_flags) add_numbers(out, kUserFlags, *fields.user_flags);
  if (fields.settings) add(out, kSettings, pack_settings(*fields.settings));
  if (const auto& hi = fields.handshake)
    add(out, kHello,
        packed(hi->lowest_version, hi->highest_version, hi->capabilities, hi->instance, hi->session) + hi->agent);
  if (fields.prefix) add(out, kPrefix, *fields.prefix);
  if (fields.regex) add(out, kRegex, *fields.regex);
  if (fields.after) add(out, kAfter, *fields.after);
  if (const auto& memory = fields.memory)
    add_numbers(out, kArena, memory->size_bytes, memory->chunk_bytes, static_cast<std::uint8_t>(memory->read_only));
  if (fields.epoch) add_numbers(out, kEpoch, *fields.epoch);
  if (const auto& copy = fields.copy) add_numbers(out, kCopy, copy->epoch, copy->sender, copy->version, copy->replaces);
  if (const auto& offer = fields.ucx)
    add(out, kUcxOffer,
        packed(offer->major, offer->minor, offer->secret[0], offer->secret[1],
               static_cast<std::uint8_t>(offer->any_transport), static_cast<std::uint16_t>(offer->address.size())) +
            offer->address + offer->transports);
  if (fields.cache) add(out, kCache, pack_cache(*fields.cache));
  if (fields.cache_is) add(out, kCacheIs, pack_cache(*fields.cache_is));
  if (const auto& now = fields.statistics) {
    std::string list;
    for (const auto field : kStatisticsFields) append_le(list, (*now).*field);
    add(out, kStatistics, list);
  }
  if (fields.ttl_ms) add_numbers(out, kTtl, *fields.ttl_ms);
  if (const auto& device = fields.device)
    add_numbers(out, kDevicePart, device->memory, device->slot, device->ticket, device->offset);
  if (fields.ucx_transports) add(out, kUcxTransports, *fields.ucx_transports);
  if (fields.owner) add(out, kOwner, *fields.owner);
  if (fields.listed) add(out, kListed, *fields.listed);
  add_lists(out, fields);
}

std::string encode_tail(const tail& fields) {
  std::string out;
  append_tail(fields, out);
  return out;
}

result<tail> decode_tail(std::string_view bytes) {
  result<tail> decoded{tail()};
  if (status read = read_tail(bytes, *decoded); !read) return read.error();
  return decoded;
}

status read_tail(std::string_view bytes, tail& out) {
  byte_reader all(bytes);
  while (!all.at_end()) {
    const auto type = all.number<std::uint16_t>();
    const auto length = all.number<std::uint16_t>();
    byte_reader field(all.take(length));
    if (!all.ok()) return failure{EPROTO, "store protocol: a field reaches past the end of its frame"};
    const bool known = read_field(type, field, out);
    if (!known && (type & kMandatory) != 0)
      return failure{
          EPROTO, format("store protocol: field 0x%x is unknown to this release: use the same release at both ends", type)};
    // A field that is longer than expected comes from a newer release; a shorter one is damaged.
    if (!field.ok()) return failure{EPROTO, format("store protocol: field 0x%x is cut off", type)};
  }
  return {};
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
  for (byte_reader reader(body); !reader.at_end();) {
    key_entry one;
    const auto length = reader.number<std::uint16_t>();
    one.value_bytes = reader.number<std::uint64_t>();
    one.version = reader.number<std::uint64_t>();
    one.key = reader.take(length);
    if (!reader.ok()) return failure{EPROTO, "store protocol: a list of keys is cut off"};
    out.push_back(std::move(one));
  }
  return out;
}

result<std::vector<pool_entry>> decode_pools(std::string_view body) {
  std::vector<pool_entry> out;
  for (byte_reader reader(body); !reader.at_end();) {
    pool_entry one;
    const auto name_bytes = reader.number<std::uint16_t>(), settings_bytes = reader.number<std::uint16_t>();
    one.keys = reader.number<std::uint64_t>();
    one.bytes = reader.number<std::uint64_t>();
    one.name = reader.take(name_bytes);
    byte_reader settings(reader.take(settings_bytes));
    if (!reader.ok() || !read_settings(settings, one.settings) || !settings.ok())
      return failure{EPROTO, "store protocol: a list of pools is cut off"};
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace pl::store_protocol
