// SPDX-License-Identifier: Apache-2.0
// The store server: an engine, its listeners, and the threads that serve connections.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/server/server_config.hpp"

namespace pl::store_server {

class server {
 public:
  // Opens the engine and listens. EADDRINUSE, EACCES, EBUSY (another server has the directory), EINVAL and others.
  static result<std::unique_ptr<server>> open(server_config config);
  // Stops as stop() does, and waits.
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  // Serves until stop(), then drains: takes no new requests and answers those in progress, for at most drain_timeout_s.
  // Then closes the engine.
  status run();
  // May be called from any thread.
  void stop();
  // Reads the TLS files again, for new connections, and server_config::config_file, for new puts. May be called from
  // any thread.
  void reload();
  // Makes SIGTERM and SIGINT end run(), and SIGHUP call reload().
  void stop_on_signals();

  const std::string& socket_path() const noexcept;  // empty if there is none
  std::string tcp_endpoint() const;                 // "127.0.0.1:11921" as bound; empty if there is none
  std::string metrics_endpoint() const;             // of the metrics, in the same form
  store::engine& engine() noexcept;

 private:
  struct state;
  explicit server(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

}  // namespace pl::store_server
