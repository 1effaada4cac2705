// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/wire.hpp"

#include <cstring>
#include <type_traits>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"

namespace pl::store_protocol {
namespace {

constexpr std::size_t kCrcAt = 60;

constexpr std::array kOpcodeNames = {
    "?",         "hello",        "ping",        "pool_create",   "pool_open",   "pool_delete", "pool_list",
    "put",       "data",         "get",         "alloc",         "commit",      "abort",       "lookup",
    "unpin",     "erase",        "stat",        "find",          "sync",        "attach",      "stats",
    "pool_set",  "cluster_map",  "sync_keys",   "sync_requests", "rings",       "arrived",     "batch_get",
    "batch_put", "batch_exists", "batch_erase", "erase_prefix",  "device_link", "watch",       "watch_next",
    "watch_end"};
static_assert(kOpcodeNames.size() == static_cast<std::size_t>(opcode::last) + 1);

constexpr std::array kPathNames = {"none", "shm-direct", "shm-staged", "unix", "tcp", "tls", "ucx", "gpu-direct"};

failure bad(const std::string& reason) { return {EPROTO, "store protocol: " + reason}; }

void store_head(const head& header, std::byte* target) {
  std::memset(target, 0, kHeadBytes);
  put_le<std::uint32_t>(target, kMagic);
  put_le<std::uint8_t>(target + 4, kVersion);
  put_le<std::uint8_t>(target + 5, static_cast<std::uint8_t>(header.op));
  put_le(target + 6, header.flags);
  put_le(target + 8, header.request_id);
  put_le(target + 16, header.pool_id);
  put_le(target + 20, header.key_bytes);
  put_le(target + 22, header.tail_bytes);
  put_le(target + 24, header.value_bytes);
  put_le(target + 32, header.offset);
  put_le(target + 40, header.body_bytes);
  put_le(target + 44, header.body_crc);
  put_le(target + 48, header.deadline_us);
  put_le(target + 52, static_cast<std::uint32_t>(header.status));
  put_le(target + 56, header.trace_id);
}

}  // namespace

const char* name_of(opcode op) noexcept {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpcodeNames.size() ? kOpcodeNames[index] : "?";
}
const char* name_of(path transport) noexcept {
  const auto index = static_cast<std::size_t>(transport);
  return index < kPathNames.size() ? kPathNames[index] : "?";
}
std::optional<path> path_of(std::string_view name) noexcept {
  for (std::size_t i = 1; i < kPathNames.size(); ++i)
    if (name == kPathNames[i]) return static_cast<path>(i);
  return std::nullopt;
}

namespace {

// Requests whose key is the name of a pool. The server knows its limit (store::kMaxPoolNameBytes), and gets no frame of a
// longer key.
constexpr bool has_pool_name(opcode op) {
  return op == opcode::pool_create || op == opcode::pool_open || op == opcode::pool_delete;
}

// `add_tail` appends the tail to `out`, where head and key are already.
template <class AddTail>
status encode_with(head header, std::string_view key, std::string& out, const AddTail& add_tail) {
  if (key.size() > kMaxKeyBytes && has_pool_name(header.op))
    return failure{EINVAL, format("a pool's name of %zu bytes: at most 255", key.size())};
  if (key.size() > kMaxKeyBytes)
    return failure{EMSGSIZE, format("a key of %zu bytes: at most %zu", key.size(), kMaxKeyBytes)};
  const std::size_t begin = out.size();
  out.append(kHeadBytes, '\0').append(key);
  add_tail();
  const std::size_t rest_bytes = out.size() - begin - kHeadBytes, tail_bytes = rest_bytes - key.size();
  if (tail_bytes > kMaxTailBytes) {
    out.resize(begin);
    return failure{EMSGSIZE, format("%zu bytes of options: at most %zu", tail_bytes, kMaxTailBytes)};
  }
  header.key_bytes = static_cast<std::uint16_t>(key.size());
  header.tail_bytes = static_cast<std::uint16_t>(tail_bytes);
  std::byte* const bytes = reinterpret_cast<std::byte*>(out.data()) + begin;
  store_head(header, bytes);
  put_le(bytes + kCrcAt, arch::crc32c(bytes + kHeadBytes, rest_bytes, arch::crc32c(bytes, kCrcAt)));
  return {};
}

}  // namespace

status encode_raw(head header, std::string_view key, std::string_view tail_bytes, std::string& out) {
  return encode_with(header, key, out, [&] { out.append(tail_bytes); });
}

status encode(head header, std::string_view key, const tail& fields, std::string& out) {
  return encode_with(header, key, out, [&] { append_tail(fields, out); });
}

result<head> decode_head(std::span<const std::byte, kHeadBytes> bytes) {
  const std::byte* source = bytes.data();
  if (get_le<std::uint32_t>(source) != kMagic) return bad("not a frame of the Peerlane store");
  const auto version = get_le<std::uint8_t>(source + 4);
  if (version != kVersion)
    return bad(format("version %u, this end speaks %u: use the same release at both ends", version, kVersion));
  head out;
  const auto op = get_le<std::uint8_t>(source + 5);
  if (op == 0 || op > static_cast<std::uint8_t>(opcode::last)) return bad(format("unknown operation %u", op));
  out.op = static_cast<opcode>(op);
  out.flags = get_le<std::uint16_t>(source + 6);
  if ((out.flags & ~flag::known) != 0) return bad(format("unknown flags 0x%x", out.flags));
  out.request_id = get_le<std::uint64_t>(source + 8);
  out.pool_id = get_le<std::uint32_t>(source + 16);
  out.key_bytes = get_le<std::uint16_t>(source + 20);
  out.tail_bytes = get_le<std::uint16_t>(source + 22);
  out.value_bytes = get_le<std::uint64_t>(source + 24);
  out.offset = get_le<std::uint64_t>(source + 32);
  out.body_bytes = get_le<std::uint32_t>(source + 40);
  out.body_crc = get_le<std::uint32_t>(source + 44);
  out.deadline_us = get_le<std::uint32_t>(source + 48);
  out.status = static_cast<std::int32_t>(get_le<std::uint32_t>(source + 52));
  out.trace_id = get_le<std::uint32_t>(source + 56);
  if (out.key_bytes > kMaxKeyBytes || out.tail_bytes > kMaxTailBytes || out.body_bytes > kMaxBodyBytes)
    return bad(
        format("key %u, tail %u, body %u bytes: more than the limits", out.key_bytes, out.tail_bytes, out.body_bytes));
  return out;
}

result<parts> decode_rest(const head& header, std::span<const std::byte> whole) {
  if (whole.size() != kHeadBytes + header.key_bytes + header.tail_bytes) return bad("a frame of the wrong length");
  std::uint32_t crc = arch::crc32c(whole.data(), kCrcAt);
  crc = arch::crc32c(whole.data() + kHeadBytes, whole.size() - kHeadBytes, crc);
  if (crc != get_le<std::uint32_t>(whole.data() + kCrcAt))
    return bad("a frame's checksum is wrong: it was damaged in transfer");
  const auto text = reinterpret_cast<const char*>(whole.data()) + kHeadBytes;
  result<parts> out{parts{{text, header.key_bytes}, {}}};
  if (status read = read_tail({text + header.key_bytes, header.tail_bytes}, out->fields); !read) return read.error();
  return out;
}

}  // namespace pl::store_protocol
