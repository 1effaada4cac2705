// SPDX-License-Identifier: Apache-2.0
#include "store/server/socket_file.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "os/close_on_exec.hpp"
#include "store/protocol/byte_channel.hpp"

namespace pl::store_server {
namespace {

constexpr auto kPeriod = std::chrono::seconds(1);  // between two looks at the file
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
std::pair<dev_t, ino_t> file_at(const std::string& path, bool follow = false) {
  struct stat info {};
  if ((follow ? stat(path.c_str(), &info) : lstat(path.c_str(), &info)) != 0) return {};
  return {info.st_dev, info.st_ino};
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// One server at a time looks at the sockets of a folder and replaces one: of two that start at the same moment, the second
// would take the first one's new socket for the old one that both found, and remove it. Everybody who can read the folder
// can lock it, so the server does not wait for long.
class folder_lock {
 public:
  explicit folder_lock(const std::string& folder) : folder_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr auto kPause = std::chrono::milliseconds(10), kPatience = std::chrono::milliseconds(2000);
    if (folder_ < 0) return;
    for (auto waited = kPause * 0; flock(folder_, LOCK_EX | LOCK_NB) != 0 && waited < kPatience; waited += kPause)
      std::this_thread::sleep_for(kPause);
  }
  ~folder_lock() {
    if (folder_ >= 0) ::close(folder_);
  }
  folder_lock(const folder_lock&) = delete;
  folder_lock& operator=(const folder_lock&) = delete;

 private:
  const int folder_;  // -1: it cannot be read
};

}  // namespace

socket_file::socket_file(asio::io_context& home, std::string path)
    : acceptor(home),
      path_(std::move(path)),
      folder_path_(folder_of(path_)),
      folder_(file_at(folder_path_, true)),
      timer_(home) {}

// Replaces a socket file without a listener; one that answers stays.
result<std::unique_ptr<socket_file>> socket_file::listen(asio::io_context& home, const std::string& path,
                                                         const server_config& config) {
  if (path.size() > 107)
    return failure{EINVAL, format("the socket path %s is longer than 107 bytes: name a shorter one with --socket (the field "
                                  "\"socket\"), or another folder",
                                  path.c_str())};
  std::unique_ptr<socket_file> out(new socket_file(home, path));
  const folder_lock alone(out->folder_path_);
  if (store_client::is_listened_to(path)) return failure{EADDRINUSE, format("another server listens on %s", path.c_str())};
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return failure{EEXIST, format("%s exists and is not a socket", path.c_str())};
    if (unlink(path.c_str()) != 0)
      return failure{errno, format("replacing %s, the socket of a server that is gone: %s%s", path.c_str(),
                                   errno_text(errno).c_str(), kNextPath)};
  }
  if (auto bound = out->bind_and_listen(config); !bound) return bound.error();
  return out;
}

void socket_file::watch(const server_config& config, event_log& log, std::function<void()> listens_again) {
  timer_.expires_after(kPeriod);
  timer_.async_wait([this, &config, &log, listens_again = std::move(listens_again)](std::error_code cancelled) mutable {
    if (cancelled || is_closed_) return;
    check(config, log, listens_again);
    watch(config, log, std::move(listens_again));
  });
}

// No client can connect without the file, and those who clean up folders remove it.
void socket_file::check(const server_config& config, event_log& log, const std::function<void()>& listens_again) {
  const auto found = file_at(path_);
  if (found == file_ && found != identity()) return;
  std::string reason = "another file has its path, or its folder was moved";
  if (found == identity() && file_at(folder_path_, true) == folder_) {
    std::error_code ignored;
    acceptor.close(ignored);
    const auto listens = bind_and_listen(config);
    if (listens) {
      listens_again();
      is_lost_ = false;
      return log.write(event_log::level::warn, "socket_made_again", {{"socket", path_}, {"why", "its file was removed"}});
    }
    reason = listens.error().message;
  }
  if (!std::exchange(is_lost_, true))
    log.write(event_log::level::error, "socket_lost",
              {{"socket", path_},
               {"why", reason},
               {"next", "no client can connect to it: remove that file, or restart the store"}});
}

void socket_file::close() {
  std::error_code ignored;
  is_closed_ = true;
  acceptor.close(ignored);
  timer_.cancel();
}

status socket_file::bind_and_listen(const server_config& config) {
  std::error_code error;
  const asio::local::stream_protocol::endpoint endpoint(path_);
  file_ = {};
  acceptor.open(endpoint.protocol(), error);
  set_close_on_exec(acceptor.native_handle());
  const mode_t before = umask(0177);
  if (!error) acceptor.bind(endpoint, error);
  umask(before);
  // Nobody can connect before it listens.
  if (!error) {
    file_ = file_at(path_);
    if (auto given = give_socket(path_, config); !given) {
      unlink(path_.c_str());
      return given.error();
    }
  }
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) return {};
  const bool takes_no_file = error.value() == ENOSPC || error.value() == EROFS;
  const char* const next = takes_no_file ? ": name a path on another file system with --socket (the field \"socket\")"
                           : error.value() == EADDRINUSE ? ""
                                                         : kNextPath;
  return failure{error.value(), format("listening on %s: %s%s", path_.c_str(), errno_text(error.value()).c_str(), next)};
}

void socket_file::remove() {
  if (file_ == identity()) return;
  const folder_lock alone(folder_path_);
  if (file_at(path_) == file_) unlink(path_.c_str());
  file_ = {};
}

}  // namespace pl::store_server
