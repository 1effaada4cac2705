// SPDX-License-Identifier: Apache-2.0
// One line of progress on stderr, rewritten in place: on a terminal only, so that logs and pipes stay clean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pl {

// "copylat  12/25  write 4 KiB  about 8 s left". Used by one thread. The line is erased at the end of life.
class progress {
 public:
  progress(std::string title, std::size_t steps);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  // Step `done` (0-based count of finished steps) starts; `step` names it.
  void start_step(std::size_t done, const std::string& step);

 private:
  std::string title_;
  std::size_t steps_;
  std::uint64_t begin_ns_;
  bool terminal_;
  bool drawn_ = false;
};

// The text without terminal control, for tests: elapsed time is given.
std::string progress_text(const std::string& title, std::size_t done, std::size_t steps, const std::string& step,
                          std::uint64_t elapsed_ns);

}  // namespace pl
