// SPDX-License-Identifier: Apache-2.0
// Environment variables whose names resemble ours but are not registered.
#include <unistd.h>

#include <array>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/spelling.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

constexpr const char* kFamilies[] = {"PEERLANE", "GDRCOPY"};

// The family that a name's first word means, spelt exactly or nearly.
const char* family_of(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('_'));
  for (const char* family : kFamilies)
    if (first == family || (first.size() < name.size() && nearest_word(first, std::array{std::string(family)}) == family))
      return family;
  return nullptr;
}

bool is_registered(std::string_view name) {
  for (const auto& variable : env_registry())
    if (name == variable.name) return true;
  return false;
}

std::string nearest_registered(std::string_view name, const std::string& family) {
  // The family is the same in all of them, so only the rest may determine the distance.
  std::vector<std::string> rests;
  for (const auto& variable : env_registry())
    if (std::string_view(variable.name).starts_with(family + "_")) rests.emplace_back(variable.name + family.size() + 1);
  const auto bar = name.find('_');
  const std::string found = nearest_word(name.substr(bar + 1), rests);
  return found.empty() ? found : family + "_" + found;
}

}  // namespace

std::vector<env_unknown> env_unknown_names() {
  std::vector<env_unknown> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const char* family = family_of(name);
    if (family == nullptr || is_registered(name) || name.find('_') == std::string_view::npos) continue;
    std::string nearest = nearest_registered(name, family);
    if (nearest.empty() && !name.starts_with(family)) continue;  // PEERLING_ADDRESS belongs to somebody else
    out.push_back({std::string(name), std::move(nearest)});
  }
  return out;
}

std::string env_unknown_text(const env_unknown& one) {
  return format("%s is not a variable of Peerlane and has no effect; did you mean %s? (peerlane env lists them)",
                one.name.c_str(), one.nearest.c_str());
}

void env_warn_of_unknown_names() noexcept {
  if (env_read("PEERLANE_NAMES_CHECKED").integer != 0) return;
  for (const auto& one : env_unknown_names())
    // Written directly, like a refused value: the log level is one of the variables that may be misspelt.
    if (!one.nearest.empty()) log_line(log_level::warn, "%s", env_unknown_text(one).c_str());
}

}  // namespace pl
