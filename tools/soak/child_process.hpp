// SPDX-License-Identifier: Apache-2.0
// Processes of this program that the soak starts, watches and kills. Each is a process group of its own, ends with its
// parent, and writes into files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pl::soak {

class child_process {
 public:
  struct settings {
    std::vector<std::string> arguments;  // after the program's name
    std::string output_path;             // standard output and error, appended; empty: thrown away
    std::uint64_t max_files = 0;         // RLIMIT_NOFILE; 0: as here
  };
  explicit child_process(const settings& wanted);
  // SIGKILL for the group if it still runs.
  ~child_process();
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  pid_t pid() const { return pid_; }
  // Its own children that run now.
  std::vector<pid_t> children() const;
  void send(int signal) const;
  // As waitpid tells it. Nothing: it has not ended by then.
  std::optional<int> wait_ms(std::uint64_t milliseconds);
  // True: nobody of the group is left, `milliseconds` from now at the latest.
  bool group_ends_within_ms(std::uint64_t milliseconds) const;

 private:
  pid_t pid_ = -1;
  std::optional<int> state_;
};

// "exit code 3", "signal 6".
std::string state_text(int state);

}  // namespace pl::soak
