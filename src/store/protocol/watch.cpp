// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/watch.hpp"

#include <cerrno>

#include "store/protocol/byte_order.hpp"

namespace pl::store_protocol {

const char* name_of(event_kind kind) noexcept {
  switch (kind) {
    case event_kind::put:
      return "put";
    case event_kind::erased:
      return "erased";
    case event_kind::evicted:
      return "evicted";
    case event_kind::expired:
      return "expired";
    case event_kind::lost:
      return "lost";
  }
  return "?";
}

void append(std::string& body, const watch_event& one) {
  append_le(body, static_cast<std::uint8_t>(one.kind));
  append_le(body, static_cast<std::uint16_t>(one.key.size()));
  append_le(body, one.version);
  append_le(body, one.value_bytes);
  body += one.key;
}

result<std::vector<watch_event>> decode_events(std::string_view body) {
  std::vector<watch_event> out;
  for (byte_reader reader(body); !reader.at_end();) {
    watch_event one;
    one.kind = static_cast<event_kind>(reader.number<std::uint8_t>());
    const auto key_bytes = reader.number<std::uint16_t>();
    one.version = reader.number<std::uint64_t>();
    one.value_bytes = reader.number<std::uint64_t>();
    one.key = reader.take(key_bytes);
    if (!reader.ok() || *name_of(one.kind) == '?')
      return failure{EPROTO, "store protocol: a list of changes is cut off or contains unknown data"};
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace pl::store_protocol
