// SPDX-License-Identifier: Apache-2.0
// A recorded machine, laid out in a temporary folder for as long as this lives.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tools/machine/checks.hpp"
#include "tools/machine/recording.hpp"

namespace pl::tools::topo {

inline std::string machine_file(const std::string& name) { return std::string(PL_MACHINES) + "/" + name + ".txt"; }

inline std::string text_of(const std::string& file) {
  std::ifstream input(file);
  return {std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
}

class laid_out_machine {
 public:
  explicit laid_out_machine(const std::string& text) {
    // Thousands of small files: in memory where that is possible.
    const auto base = std::filesystem::is_directory("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                                : std::filesystem::temp_directory_path();
    std::string pattern = (base / "topo-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    const auto done = expand_recording(text, folder_);
    if (!done) ADD_FAILURE() << done.error().message;
    all = read_machine(folder_);
  }
  ~laid_out_machine() { std::filesystem::remove_all(folder_); }
  laid_out_machine(const laid_out_machine&) = delete;
  laid_out_machine& operator=(const laid_out_machine&) = delete;
  const std::string& folder() const { return folder_; }

  machine all;

 private:
  std::string folder_;
};

// Laid out once for all tests that only look at it.
inline const laid_out_machine& laid_out(const std::string& text) {
  static std::map<std::string, std::unique_ptr<laid_out_machine>> known;
  auto& one = known[text];
  if (one == nullptr) one = std::make_unique<laid_out_machine>(text);
  return *one;
}
inline const laid_out_machine& machine_named(std::string_view name) {
  return laid_out(text_of(machine_file(std::string(name))));
}

inline const finding* find_finding(const std::vector<finding>& all, const std::string& subject) {
  for (const auto& one : all)
    if (one.subject == subject) return &one;
  return nullptr;
}

// The level and the text of a finding, "absent" without one.
inline std::string finding_text(const std::vector<finding>& all, const std::string& subject) {
  const auto* one = find_finding(all, subject);
  if (one == nullptr) return "absent";
  return std::string(one->level == severity::ok     ? "ok: "
                     : one->level == severity::note ? "note: "
                                                    : "BLOCKER: ") +
         one->message;
}

}  // namespace pl::tools::topo
