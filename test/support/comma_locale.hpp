// SPDX-License-Identifier: Apache-2.0
// A locale with a decimal comma for this process, made by localedef: a machine need not have one.
#pragma once

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace pl::test {

class comma_locale {
 public:
  comma_locale() {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-locale-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) return;
    folder_ = pattern;
    std::ofstream(folder_ + "/source")
        << "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"<U002E>\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    const std::string command =
        "localedef --no-archive --force --quiet -i " + folder_ + "/source " + folder_ + "/comma >/dev/null 2>&1";
    // Its warnings (categories that the source leaves out) make the exit code 1.
    [[maybe_unused]] const int outcome = std::system(command.c_str());
    setenv("LOCPATH", folder_.c_str(), 1);
    is_set_ = std::setlocale(LC_NUMERIC, "comma") != nullptr && *std::localeconv()->decimal_point == ',';
  }
  comma_locale(const comma_locale&) = delete;
  comma_locale& operator=(const comma_locale&) = delete;
  ~comma_locale() {
    std::setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  // False: localedef is not there (package libc-bin).
  bool is_set() const { return is_set_; }

 private:
  std::string folder_;
  bool is_set_ = false;
};

}  // namespace pl::test
