// SPDX-License-Identifier: Apache-2.0
// The store that the soak torments: one folder, one server process after the other on it. One thread starts and ends
// servers; any thread asks for the epoch.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tools/common/command_process.hpp"
#include "tools/soak/soak.hpp"

namespace pl::soak {

// A server with a small memory tier on this folder, as typed after `peerlane`.
std::vector<std::string> serve_arguments(const std::string& folder);

class store_under_soak {
 public:
  store_under_soak(const plan& run, findings& seen, std::string folder);

  // Starts a server on the folder. False: it refused with a clear exit. A server that dies by a signal while it starts, or
  // that neither serves nor ends, is a violation.
  bool start(std::uint64_t max_files = 0);
  // Ends the server by this signal. What is not persistent may be lost from here on.
  void end(int signal, bool is_disk_full = false);
  void send(int signal) const { server_->send(signal); }
  bool is_running() const { return server_ != nullptr; }

  // Raised before and after each end of a server: what a client saw before and what it sees after are of different servers.
  std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  std::string socket() const { return folder_ + "/store.sock"; }
  const std::string& folder() const { return folder_; }
  const std::string& log() const { return log_; }

 private:
  const plan& run_;
  findings& seen_;
  std::string folder_, log_;
  std::unique_ptr<command_process> server_;
  std::atomic<std::uint64_t> epoch_{0};
};

}  // namespace pl::soak
