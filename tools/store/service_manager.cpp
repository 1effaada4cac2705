// SPDX-License-Identifier: Apache-2.0
#include "tools/store/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/env.hpp"
#include "base/text.hpp"
#include "os/unique_fd.hpp"

namespace pl::store_tools {

status notify_service_manager(const std::string& state) {
  const std::string name = env_read("NOTIFY_SOCKET").text;
  if (name.empty()) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool is_name = (name[0] == '/' || name[0] == '@') && name.size() < sizeof address.sun_path;
  if (!is_name) return failure{EINVAL, "NOTIFY_SOCKET names no unix socket: " + name};
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = 0;  // an abstract name, which ends where the address does
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const unique_fd socket_fd(real_device_io(), socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto sent =
      sendto(socket_fd.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), bytes);
  if (sent == static_cast<ssize_t>(state.size())) return {};
  return failure{errno, format("telling the service manager (%s): %s", name.c_str(), errno_text(errno).c_str())};
}

}  // namespace pl::store_tools
