// SPDX-License-Identifier: Apache-2.0
// The address of a unix socket in the abstract namespace: there is no file, and the name disappears with the last
// descriptor.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/fnv1a.hpp"

namespace pl {

struct abstract_address {
  // A name longer than sun_path is shortened and ends with a hash of the whole, because keys of jobs may be long and
  // differ only at their ends.
  explicit abstract_address(std::string_view text) noexcept {
    constexpr std::size_t kRoom = sizeof place.sun_path - 1, kDigits = 16;
    place.sun_family = AF_UNIX;
    const bool fits = text.size() <= kRoom;
    std::size_t bytes = fits ? text.size() : kRoom - kDigits;
    std::memcpy(place.sun_path + 1, text.data(), bytes);  // after a zero byte
    std::uint64_t whole = fits ? 0 : fnv1a(text);
    for (; bytes < text.size() && bytes < kRoom; ++bytes, whole >>= 4)
      place.sun_path[1 + bytes] = "0123456789abcdef"[whole & 15];
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&place); }

  sockaddr_un place{};
  socklen_t size = 0;
};

}  // namespace pl
