// SPDX-License-Identifier: Apache-2.0
// Converts what the store's C interface receives to what the client takes.
#pragma once

#include <peerlane/store.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "capi/capi_call.hpp"
#include "store/client/client.hpp"

namespace pl {

// Copies the fields that the caller's release knows; the rest is zero.
template <class Options>
Options taken(const Options* given) {
  Options out{};
  if (given != nullptr) std::memcpy(&out, given, std::min(given->struct_bytes, sizeof out));
  return out;
}

// A struct of a caller that has not set its size would be taken for one without a single field.
template <class Options>
status check_size(const Options* given) {
  if (given == nullptr || given->struct_bytes >= sizeof(std::size_t) + sizeof(std::uint32_t)) return {};
  return failure{EINVAL, format("options->struct_bytes is %zu: set it to the size of the struct", given->struct_bytes)};
}

// Nothing if it is no level, or one that callers may not use.
inline std::optional<store_protocol::durability> given_level(std::uint32_t number) {
  const auto level = store::durability_from(number);
  return level && store::check_given(*level) ? level : std::nullopt;
}

// A caller's timeout; negative: none, represented as three weeks.
inline int limit_of(std::int64_t timeout_ms) {
  return timeout_ms < 0 || timeout_ms > INT_MAX ? INT_MAX : static_cast<int>(timeout_ms);
}

inline std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

inline store_client::put_request put_request_of(const peerlane_put_options* given) {
  const auto options = taken(given);
  store_client::put_request out;
  if (const auto level = given_level(options.durability); level != store_protocol::durability::pool_default)
    out.level = level;
  if (options.condition != 0)
    out.only =
        store_protocol::precondition{static_cast<store_protocol::condition>(options.condition), options.expected_version};
  if (options.ttl_ms != 0) out.ttl_ms = options.ttl_ms;
  if (options.user_flags != 0) out.user_flags = options.user_flags;
  if (options.is_part != 0) out.offset = options.offset_bytes;
  if (options.timeout_ms != 0) out.timeout_ms = limit_of(options.timeout_ms);
  out.order = {options.on_stream != 0, static_cast<cu::stream_t>(options.stream)};
  return out;
}

inline store_client::get_request get_request_of(const peerlane_get_options* given) {
  const auto options = taken(given);
  store_client::get_request out;
  out.offset = options.offset_bytes;
  out.verify = options.verify != 0;
  if (options.timeout_ms != 0) out.timeout_ms = limit_of(options.timeout_ms);
  out.order = {options.on_stream != 0, static_cast<cu::stream_t>(options.stream)};
  out.leave_to_stream = out.order.has;
  return out;
}

inline bool known(const peerlane_put_options* given) {
  const auto options = taken(given);
  return given_level(options.durability) && options.condition <= PEERLANE_IF_VERSION;
}

inline std::string_view key_of(const void* key, std::size_t bytes) { return {static_cast<const char*>(key), bytes}; }

// Before a key is copied: a size that came of an error would be copied from anywhere.
inline status check_key(const void* key, std::size_t bytes) {
  if (key == nullptr) return failure{EINVAL, kNullPointer};
  if (bytes <= store_protocol::kMaxKeyBytes) return {};
  return failure{EMSGSIZE, format("a key of %zu bytes: at most %zu", bytes, store_protocol::kMaxKeyBytes)};
}

inline status check_options(const peerlane_put_options* given) {
  if (auto sized = check_size(given); !sized) return sized;
  if (!known(given)) return failure{EINVAL, "unknown durability or condition"};
  if (taken(given).reserved != 0) return failure{EINVAL, "options->reserved must be 0"};
  return {};
}

inline status check_item(const peerlane_store_item& item) {
  if (auto fine = check_key(item.key, item.key_size_bytes); !fine) return fine;
  if (item.value.address == 0 && item.value.size_bytes > 0) return failure{EINVAL, kNullPointer};
  if (item.value.size_bytes > UINTPTR_MAX - item.value.address)
    return failure{EINVAL, "the buffer ends beyond the address space"};
  if (item.request == PEERLANE_STORE_PUT && item.value.size_bytes > store_protocol::kMaxValueBytes)
    return failure{EFBIG, format("a value of %zu bytes: at most %s", item.value.size_bytes,
                                 format_size(store_protocol::kMaxValueBytes).c_str())};
  if (auto fine = check_options(item.put_options); !fine) return fine;
  if (auto fine = check_size(item.get_options); !fine) return fine;
  if (item.request < PEERLANE_STORE_PUT || item.request > PEERLANE_STORE_ERASE)
    return failure{EINVAL, "unknown request: PEERLANE_STORE_PUT, _GET or _ERASE"};
  return {};
}

// More items than an address space holds come of an error, such as a negative number.
inline status check_count(std::size_t count) {
  if (count <= PTRDIFF_MAX / sizeof(peerlane_store_item)) return {};
  return failure{EINVAL, format("count is %zu: no memory holds as many items", count)};
}

// For a client or a router, whose calls are alike. Precondition: check_item.
template <class Store>
auto make_item(Store& store, const peerlane_store_item& item, const store_client::memory& buffer) {
  const auto key = key_of(item.key, item.key_size_bytes);
  if (item.request == PEERLANE_STORE_ERASE) return store.make_erase(item.pool, key, put_request_of(item.put_options));
  if (item.request == PEERLANE_STORE_PUT) return store.make_put(item.pool, key, buffer, put_request_of(item.put_options));
  return store.make_get(item.pool, key, buffer, get_request_of(item.get_options));
}

}  // namespace pl
