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
  // Opens the engine and listens. EADDRINUSE, EACCES, EBUSY (another server has the directory), EINVAL, ...
  static result<std::unique_ptr<server>> open(server_config config);
  // Stops as stop() and waits.
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  // Serves until stop(), then drains: no new requests, answers for those under way, at most drain_timeout_s. Closes the
  // engine.
  status run();
  // From any thread.
  void stop();
  // From any thread: reads the TLS files again, for connections from then on, and server_config::quotas_file, for puts from
  // then on.
  void reload();
  // run() then ends on SIGTERM and SIGINT too, and SIGHUP is reload().
  void stop_on_signals();

  const std::string& socket_path() const noexcept;  // empty: none
  std::string tcp_endpoint() const;                 // "127.0.0.1:11921" as bound; empty: none
  std::string metrics_endpoint() const;             // likewise
  store::engine& engine() noexcept;

 private:
  struct state;
  explicit server(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

}  // namespace pl::store_server
