// SPDX-License-Identifier: Apache-2.0
#include "tools/soak/store_under_soak.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/store/own_server.hpp"

namespace pl::soak {
namespace {

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line))
    if (!line.empty()) last = line;
  return last;
}

}  // namespace

std::vector<std::string> serve_arguments(const std::string& folder) {
  return {"store", "serve", "--data", folder, "--listen", "none", "--arena", "33554432", "--chunk", "16777216"};
}

store_under_soak::store_under_soak(const plan& run, findings& seen, std::string folder)
    : run_(run), seen_(seen), folder_(std::move(folder)), log_(run.folder + "/server.log") {}

bool store_under_soak::start(std::uint64_t max_files) {
  auto arguments = serve_arguments(folder_);
  arguments.insert(arguments.end(), {"--log-level", "warn"});
  server_ = std::make_unique<command_process>(
      command_process::settings{.arguments = arguments, .output_path = log_, .max_files = max_files, .environment = {}});
  const std::uint64_t end_ns = monotonic_ns() + kHungMs * 1'000'000;
  while (monotonic_ns() < end_ns) {
    seen_.touch();
    if (const auto state = server_->wait_ms(10)) {
      if (WIFSIGNALED(*state))
        seen_.violation("a server that started died by " + state_text(*state) + "; its words: " + log_);
      server_.reset();
      seen_.count("starts refused");
      return false;
    }
    if (!store_tools::is_unserved(folder_)) {
      seen_.count("servers started");
      return true;
    }
  }
  seen_.violation("a server neither served nor ended within 300 s");
  end(SIGKILL);
  return false;
}

void store_under_soak::end(int signal, bool is_disk_full) {
  if (!server_) return;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  server_->send(signal);
  const auto state = server_->wait_ms(kHungMs);
  // Repeats the check: a client may have had a put acknowledged between the first step and the signal.
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  if (!state) seen_.violation("a server did not end within 300 s of signal " + std::to_string(signal));
  else if (signal == SIGTERM && *state != 0 && is_disk_full && WIFEXITED(*state))
    seen_.count("ends that reported a full disk");
  else if (signal == SIGTERM && *state != 0)
    seen_.violation("a server that was asked to end (SIGTERM) ended by " + state_text(*state) +
                    "; its last words: " + last_line(log_));
  server_.reset();
}

}  // namespace pl::soak
