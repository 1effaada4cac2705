// SPDX-License-Identifier: Apache-2.0
// Splits "host:port" and "[v6]:port".
#pragma once

#include <string>
#include <utility>

#include "base/status.hpp"
#include "base/text.hpp"

namespace pl {

// EINVAL unless the port is 0 to 65535: resolvers would truncate it to 16 bits. An empty host stays empty.
inline result<std::pair<std::string, std::string>> split_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return failure{EINVAL, "\"" + text + "\" is not HOST:PORT"};
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::string port = text.substr(colon + 1);
  const auto number = parse_integer(port);
  if (!number || *number < 0 || *number > 65535)
    return failure{EINVAL, "\"" + text + "\": the port is a number from 0 to 65535"};
  return std::pair{std::move(host), std::move(port)};
}

}  // namespace pl
