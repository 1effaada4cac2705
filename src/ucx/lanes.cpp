// SPDX-License-Identifier: Apache-2.0
#include "ucx/lanes.hpp"

#include <algorithm>

namespace pl::ucx {
namespace {

void add_once(std::string& list, std::string_view name) {
  if (("," + list + ",").find("," + std::string(name) + ",") != std::string::npos) return;
  if (!list.empty()) list += ',';
  list += name;
}

// Calls the body with the rest of each line that contains `mark`.
template <class Body>
void for_each_line(std::string_view text, std::string_view mark, Body body) {
  for (std::size_t position = 0; (position = text.find(mark, position)) != std::string_view::npos;) {
    const auto end = std::min(text.find('\n', position), text.size());
    body(text.substr(position + mark.size(), end - position - mark.size()));
    position = end;
  }
}

}  // namespace

// "#  resource 1  :  md 1  dev 1  flags -- tcp/lo"
std::string transports_in(std::string_view text) {
  std::string out;
  for_each_line(text, "resource ", [&](std::string_view line) {
    const auto last = line.find_last_not_of(' ');
    if (last == std::string_view::npos) return;
    line = line.substr(0, last + 1);
    if (const auto name = line.substr(line.rfind(' ') + 1); name.find('/') != std::string_view::npos) add_once(out, name);
  });
  return out;
}

// "#  lane[0]:  2:rc_verbs/rxe0:1.0 md[1]  -> ... am am_bw#0 rma_bw#0"; the number behind the dot counts paths of one
// device.
std::vector<lane> lanes_in(std::string_view text) {
  std::vector<lane> out;
  for_each_line(text, "lane[", [&](std::string_view line) {
    const auto before = line.find(':', std::min(line.find("]:"), line.size()) + 2);
    const auto end = line.find(' ', before);
    if (end == std::string_view::npos) return;
    auto name = line.substr(before + 1, end - before - 1);
    if (const auto dot = name.rfind('.'); dot != std::string_view::npos && dot != 0) name = name.substr(0, dot);
    out.push_back({std::string(name), line.find("rma_bw", end) != std::string_view::npos});
  });
  return out;
}

std::string names_of(const std::vector<lane>& lanes) {
  std::string out;
  for (const auto& each : lanes) add_once(out, each.name);
  return out;
}

bool has_rdma_lane(const std::vector<lane>& lanes) {
  return std::any_of(lanes.begin(), lanes.end(), [](const lane& each) {
    return each.is_for_bulk && (each.name.starts_with("rc_") || each.name.starts_with("dc_"));
  });
}

}  // namespace pl::ucx
