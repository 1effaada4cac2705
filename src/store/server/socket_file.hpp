// SPDX-License-Identifier: Apache-2.0
// The server's unix socket: listens at a path. If somebody has put another file there since, that file is left alone. If
// somebody has removed it, it can be made again.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "store/server/event_log.hpp"
#include "store/server/server_config.hpp"

namespace pl::store_server {

class socket_file {
 public:
  // EADDRINUSE: another server listens there. EEXIST: there is a file that is no socket.
  static result<std::unique_ptr<socket_file>> listen(asio::io_context& home, const std::string& path,
                                                     const server_config& config);
  // Removes the file if it is still this socket's. May be called again.
  void remove();
  // Looks once a second whether the file is still there. If somebody has removed it, listens with a new one and calls
  // `listens_again`: what waits for connections of `acceptor` has been cancelled. Before close(), and on the thread of
  // `home`.
  void watch(const server_config& config, event_log& log, std::function<void()> listens_again);
  // Accepts no connection any more.
  void close();

  asio::local::stream_protocol::acceptor acceptor;

 private:
  using identity = std::pair<dev_t, ino_t>;  // zeros if there is none
  socket_file(asio::io_context& home, std::string path);
  status bind_and_listen(const server_config& config);
  void check(const server_config& config, event_log& log, const std::function<void()>& listens_again);
  std::string path_, folder_path_;
  identity file_, folder_;
  asio::steady_timer timer_;
  bool is_closed_ = false;
  bool is_lost_ = false;  // and the log says so
};

}  // namespace pl::store_server
