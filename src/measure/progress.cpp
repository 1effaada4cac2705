// SPDX-License-Identifier: Apache-2.0
#include "measure/progress.hpp"

#include <unistd.h>

#include <cstdio>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl {

progress::progress(std::string title, std::size_t steps)
    : title_(std::move(title)), steps_(steps), begin_ns_(monotonic_ns()), terminal_(isatty(STDERR_FILENO) != 0) {}

progress::~progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void progress::start_step(std::size_t done, const std::string& step) {
  if (!terminal_) return;
  std::fprintf(stderr, "\r\033[K%s", progress_text(title_, done, steps_, step, monotonic_ns() - begin_ns_).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

std::string progress_text(const std::string& title, std::size_t done, std::size_t steps, const std::string& step,
                          std::uint64_t elapsed_ns) {
  std::string text = format("%s  %zu/%zu  %s", title.c_str(), done, steps, step.c_str());
  if (done > 0 && done < steps) {
    const double left_s =
        static_cast<double>(elapsed_ns) / 1e9 / static_cast<double>(done) * static_cast<double>(steps - done);
    text += format("  about %.0f s left", left_s < 1 ? 1.0 : left_s);
  }
  return text;
}

}  // namespace pl
