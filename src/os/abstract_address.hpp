// SPDX-License-Identifier: Apache-2.0
// The address of a unix socket in the abstract name space: no file, gone with the last descriptor.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace pl {

struct abstract_address {
  // What is longer than sun_path holds is cut off.
  explicit abstract_address(std::string_view text) noexcept {
    place.sun_family = AF_UNIX;
    const std::size_t bytes = std::min(text.size(), sizeof place.sun_path - 1);
    std::memcpy(place.sun_path + 1, text.data(), bytes);  // behind a zero byte
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&place); }

  sockaddr_un place{};
  socklen_t size = 0;
};

}  // namespace pl
