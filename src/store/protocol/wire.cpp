// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/wire.hpp"

#include <cstring>
#include <type_traits>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"

namespace pl::store_wire {
namespace {

constexpr std::size_t kCrcAt = 60;

constexpr std::array kOpcodeNames = {
    "?",    "hello",  "ping",   "pool_create", "pool_open",   "pool_delete", "pool_list",     "put",   "data",
    "get",  "alloc",  "commit", "abort",       "lookup",      "unpin",       "erase",         "stat",  "find",
    "sync", "attach", "stats",  "pool_set",    "cluster_map", "sync_keys",   "sync_requests", "rings", "arrived"};
static_assert(kOpcodeNames.size() == static_cast<std::size_t>(opcode::last) + 1);

constexpr std::array kPathNames = {"none", "shm-direct", "shm-staged", "unix", "tcp", "tls", "ucx"};

failure bad(const std::string& what) { return {EPROTO, "store protocol: " + what}; }

void store_head(const head& what, std::byte* at) {
  std::memset(at, 0, kHeadBytes);
  put_le<std::uint32_t>(at, kMagic);
  put_le<std::uint8_t>(at + 4, kVersion);
  put_le<std::uint8_t>(at + 5, static_cast<std::uint8_t>(what.op));
  put_le(at + 6, what.flags);
  put_le(at + 8, what.request_id);
  put_le(at + 16, what.pool_id);
  put_le(at + 20, what.key_bytes);
  put_le(at + 22, what.tail_bytes);
  put_le(at + 24, what.value_bytes);
  put_le(at + 32, what.offset);
  put_le(at + 40, what.body_bytes);
  put_le(at + 44, what.body_crc);
  put_le(at + 48, what.deadline_us);
  put_le(at + 52, static_cast<std::uint32_t>(what.status));
  put_le(at + 56, what.trace_id);
}

}  // namespace

const char* name_of(opcode op) noexcept {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpcodeNames.size() ? kOpcodeNames[index] : "?";
}
const char* name_of(path way) noexcept {
  const auto index = static_cast<std::size_t>(way);
  return index < kPathNames.size() ? kPathNames[index] : "?";
}
std::optional<path> path_of(std::string_view name) noexcept {
  for (std::size_t i = 1; i < kPathNames.size(); ++i)
    if (name == kPathNames[i]) return static_cast<path>(i);
  return std::nullopt;
}
status encode_raw(head what, std::string_view key, std::string_view tail_bytes, std::string& out) {
  if (key.size() > kMaxKeyBytes)
    return failure{EMSGSIZE, format("a key of %zu bytes: at most %zu", key.size(), kMaxKeyBytes)};
  if (tail_bytes.size() > kMaxTailBytes)
    return failure{EMSGSIZE, format("%zu bytes of options: at most %zu", tail_bytes.size(), kMaxTailBytes)};
  what.key_bytes = static_cast<std::uint16_t>(key.size());
  what.tail_bytes = static_cast<std::uint16_t>(tail_bytes.size());
  std::byte bytes[kHeadBytes];
  store_head(what, bytes);
  std::uint32_t crc = arch::crc32c(bytes, kCrcAt);
  crc = arch::crc32c(key.data(), key.size(), crc);
  crc = arch::crc32c(tail_bytes.data(), tail_bytes.size(), crc);
  put_le(bytes + kCrcAt, crc);
  out.append(reinterpret_cast<const char*>(bytes), kHeadBytes).append(key).append(tail_bytes);
  return {};
}

status encode(head what, std::string_view key, const tail& fields, std::string& out) {
  return encode_raw(what, key, encode_tail(fields), out);
}

result<head> decode_head(std::span<const std::byte, kHeadBytes> bytes) {
  const std::byte* at = bytes.data();
  if (get_le<std::uint32_t>(at) != kMagic) return bad("this is no peerlane store frame");
  const auto version = get_le<std::uint8_t>(at + 4);
  if (version != kVersion)
    return bad(format("version %u, this end speaks %u: use the same release at both ends", version, kVersion));
  head out;
  const auto op = get_le<std::uint8_t>(at + 5);
  if (op == 0 || op > static_cast<std::uint8_t>(opcode::last)) return bad(format("unknown operation %u", op));
  out.op = static_cast<opcode>(op);
  out.flags = get_le<std::uint16_t>(at + 6);
  if ((out.flags & ~flag::known) != 0) return bad(format("unknown flags 0x%x", out.flags));
  out.request_id = get_le<std::uint64_t>(at + 8);
  out.pool_id = get_le<std::uint32_t>(at + 16);
  out.key_bytes = get_le<std::uint16_t>(at + 20);
  out.tail_bytes = get_le<std::uint16_t>(at + 22);
  out.value_bytes = get_le<std::uint64_t>(at + 24);
  out.offset = get_le<std::uint64_t>(at + 32);
  out.body_bytes = get_le<std::uint32_t>(at + 40);
  out.body_crc = get_le<std::uint32_t>(at + 44);
  out.deadline_us = get_le<std::uint32_t>(at + 48);
  out.status = static_cast<std::int32_t>(get_le<std::uint32_t>(at + 52));
  out.trace_id = get_le<std::uint32_t>(at + 56);
  if (out.key_bytes > kMaxKeyBytes || out.tail_bytes > kMaxTailBytes || out.body_bytes > kMaxBodyBytes)
    return bad(
        format("key %u, tail %u, body %u bytes: more than the limits", out.key_bytes, out.tail_bytes, out.body_bytes));
  return out;
}

result<parts> decode_rest(const head& what, std::span<const std::byte> whole) {
  if (whole.size() != kHeadBytes + what.key_bytes + what.tail_bytes) return bad("a frame of the wrong length");
  std::uint32_t crc = arch::crc32c(whole.data(), kCrcAt);
  crc = arch::crc32c(whole.data() + kHeadBytes, whole.size() - kHeadBytes, crc);
  if (crc != get_le<std::uint32_t>(whole.data() + kCrcAt))
    return bad("a frame's checksum is wrong: it was damaged on its way");
  const auto text = reinterpret_cast<const char*>(whole.data()) + kHeadBytes;
  auto fields = decode_tail({text + what.key_bytes, what.tail_bytes});
  if (!fields) return fields.error();
  return parts{{text, what.key_bytes}, *std::move(fields)};
}

}  // namespace pl::store_wire
