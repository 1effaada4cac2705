// SPDX-License-Identifier: Apache-2.0
// The server's unix socket: listens at a path. If somebody has put another file there since, that file is left alone.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <memory>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "store/server/server_config.hpp"

namespace pl::store_server {

class socket_file {
 public:
  // EADDRINUSE: another server listens there. EEXIST: there is a file that is no socket.
  static result<std::unique_ptr<socket_file>> listen(asio::io_context& home, const std::string& path,
                                                     const server_config& config);
  // Removes the file if it is still this socket's. May be called again.
  void remove();

  asio::local::stream_protocol::acceptor acceptor;

 private:
  socket_file(asio::io_context& home, std::string path) : acceptor(home), path_(std::move(path)) {}
  std::string path_;
  std::pair<dev_t, ino_t> file_;  // zeros if there is none
};

}  // namespace pl::store_server
