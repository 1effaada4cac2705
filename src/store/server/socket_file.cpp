// SPDX-License-Identifier: Apache-2.0
#include "store/server/socket_file.hpp"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.hpp"
#include "os/close_on_exec.hpp"
#include "store/protocol/byte_channel.hpp"

namespace pl::store_server {
namespace {

constexpr const char* kNextPath =
    ": name a path in a folder that the server's user may write with --socket (the field \"socket\")";

result<gid_t> group_of(const std::string& name) {
  constexpr std::int64_t kMaxGroup = 0xffff'fffe;  // the next number stands for no group
  if (const auto number = parse_integer(name); number && *number >= 0 && *number <= kMaxGroup)
    return static_cast<gid_t>(*number);
  errno = 0;
  const group* const found = getgrnam(name.c_str());  // the server has only one thread while it starts
  if (found != nullptr) return found->gr_gid;
  return failure{EINVAL,
                 format("config field \"socket_group\": group %s does not exist (groupadd creates it)", name.c_str())};
}

// Sets group and mode of the socket's file.
status give_socket(const std::string& path, const server_config& config) {
  const auto mode = parse_socket_mode(config.socket_mode);
  if (!mode) return mode.error();
  if (!config.socket_group.empty()) {
    const auto group = group_of(config.socket_group);
    if (!group) return group.error();
    if (chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0)
      return failure{errno, format("giving %s to group %s: %s: the server's user must be in that group, or be root",
                                   path.c_str(), config.socket_group.c_str(), errno_text(errno).c_str())};
  }
  if (chmod(path.c_str(), *mode) == 0) return {};
  return failure{errno, format("mode %s of %s: %s", config.socket_mode.c_str(), path.c_str(), errno_text(errno).c_str())};
}

// Identity of the file that has this name now.
std::pair<dev_t, ino_t> file_at(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

}  // namespace

// Replaces a socket file without a listener; one that answers stays.
result<std::unique_ptr<socket_file>> socket_file::listen(asio::io_context& home, const std::string& path,
                                                         const server_config& config) {
  if (path.size() > 107)
    return failure{EINVAL, format("the socket path %s is longer than 107 bytes: name a shorter one with --socket (the field "
                                  "\"socket\"), or another folder",
                                  path.c_str())};
  const asio::local::stream_protocol::endpoint endpoint(path);
  if (store_client::is_listened_to(path)) return failure{EADDRINUSE, format("another server listens on %s", path.c_str())};
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return failure{EEXIST, format("%s exists and is not a socket", path.c_str())};
    if (unlink(path.c_str()) != 0)
      return failure{errno, format("replacing %s, the socket of a server that is gone: %s%s", path.c_str(),
                                   errno_text(errno).c_str(), kNextPath)};
  }
  std::unique_ptr<socket_file> out(new socket_file(home, path));
  std::error_code error;
  out->acceptor.open(endpoint.protocol(), error);
  set_close_on_exec(out->acceptor.native_handle());
  const mode_t before = umask(0177);
  if (!error) out->acceptor.bind(endpoint, error);
  umask(before);
  // Nobody can connect before it listens.
  if (!error) {
    out->file_ = file_at(path);
    if (auto given = give_socket(path, config); !given) {
      unlink(path.c_str());
      return given.error();
    }
  }
  if (!error) out->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) return out;
  const bool takes_no_file = error.value() == ENOSPC || error.value() == EROFS;
  const char* const next = takes_no_file ? ": name a path on another file system with --socket (the field \"socket\")"
                           : error.value() == EADDRINUSE ? ""
                                                         : kNextPath;
  return failure{error.value(), format("listening on %s: %s%s", path.c_str(), errno_text(error.value()).c_str(), next)};
}

void socket_file::remove() {
  if (file_ != std::pair<dev_t, ino_t>() && file_at(path_) == file_) unlink(path_.c_str());
  file_ = {};
}

}  // namespace pl::store_server
