// SPDX-License-Identifier: Apache-2.0
// Processes of this program that a command starts, watches and kills. Each is a process group of its own and ends with its
// parent.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pl::tools {

class command_process {
 public:
  struct settings {
    std::vector<std::string> arguments;  // after the program's name
    std::string output_path;             // standard output and error, appended; empty: those of this process
    std::uint64_t max_files = 0;         // RLIMIT_NOFILE; 0: as here
    std::vector<std::pair<std::string, std::string>> environment;  // set for it alone
    int end_signal = SIGKILL;                                      // sent to it when this process ends
  };
  // Throws tool_failure.
  explicit command_process(const settings& wanted);
  // SIGKILL for what still runs of the group.
  ~command_process();
  command_process(const command_process&) = delete;
  command_process& operator=(const command_process&) = delete;

  pid_t pid() const { return pid_; }
  // Its own children that run now.
  std::vector<pid_t> children() const;
  void send(int signal) const;
  // The status of waitpid. Nothing if it has not ended by then.
  std::optional<int> wait_ms(std::uint64_t milliseconds);
  // Returns true if nobody of the group is left within `milliseconds`.
  bool group_ends_within_ms(std::uint64_t milliseconds) const;

 private:
  pid_t pid_ = -1;
  std::optional<int> state_;
};

// "exit code 3", "signal 6".
std::string state_text(int state);

}  // namespace pl::tools
