// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/sysfs_text.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace pl::tools::topo {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path& file) {
  std::ifstream input(file, std::ios::binary);
  if (!input) return std::nullopt;
  std::stringstream text;
  text << input.rdbuf();
  if (input.bad() || text.fail()) return std::nullopt;
  const std::string all = text.str();
  const auto first = all.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::nullopt;
  return all.substr(first, all.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<long long> leading_integer(const std::string& text) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 0);
  if (end == text.c_str()) return std::nullopt;
  return value;
}

std::optional<long long> read_integer(const fs::path& file) {
  const auto text = read_text(file);
  return text ? leading_integer(*text) : std::nullopt;
}

std::optional<std::string> link_target_name(const fs::path& link) {
  std::error_code problem;
  const auto target = fs::read_symlink(link, problem);
  if (problem) return std::nullopt;
  return target.filename().string();
}

bool natural_less(const std::string& left, const std::string& right) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0, j = 0;
  while (i < left.size() && j < right.size()) {
    if (!digit(left[i]) || !digit(right[j])) {
      if (left[i] != right[j]) return left[i] < right[j];
      ++i, ++j;
      continue;
    }
    const auto number_end = [&digit](const std::string& text, std::size_t start) {
      while (start < text.size() && digit(text[start])) ++start;
      return start;
    };
    const auto left_end = number_end(left, i), right_end = number_end(right, j);
    const auto a = std::strtoull(left.c_str() + i, nullptr, 10), b = std::strtoull(right.c_str() + j, nullptr, 10);
    if (a != b) return a < b;
    i = left_end, j = right_end;
  }
  return left.size() - i < right.size() - j;
}

std::vector<std::string> sorted_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(folder, problem)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

}  // namespace pl::tools::topo
