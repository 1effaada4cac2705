// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/foreign_settings.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

std::vector<std::string> split(const std::string& list, char separator) {
  std::vector<std::string> out;
  std::istringstream rest(list);
  for (std::string word; std::getline(rest, word, separator);) out.push_back(word);
  return out;
}

// Adapter names as drivers choose them: lower-case letters, an underscore, a number.
bool is_adapter_name(const std::string& word) {
  return word.find('_') != std::string::npos && std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::islower(c) || std::isdigit(c) || c == '_';
         });
}

bool is_port(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Converts "mlx5_0" or "mlx5_0:2" to the format of UCX; empty: it has neither form.
std::string device_named(const std::string& word) {
  const auto colon = std::min(word.find(':'), word.size());
  const std::string adapter = word.substr(0, colon), port = colon == word.size() ? "1" : word.substr(colon + 1);
  return is_adapter_name(adapter) && is_port(port) ? adapter + ":" + port : std::string();
}

std::string devices_of(const std::string& list, char separator) {
  std::string out;
  for (const auto& word : split(list, separator)) {
    const std::string device = device_named(word);
    if (device.empty()) return {};
    out += (out.empty() ? "" : ",") + device;
  }
  return out;
}

bool has_all(const std::string& folder, const std::string& devices) {
  std::error_code ignored;
  const auto each = split(devices, ',');
  return std::all_of(each.begin(), each.end(), [&](const std::string& one) {
    return std::filesystem::exists(folder + "/" + one.substr(0, one.find(':')), ignored);
  });
}

// Variables of other stacks that name rails, in order of precedence.
struct rail_variable {
  const char* name;
  char separator;
  bool is_one_each;  // each rank of the node uses one device of the list
};
constexpr rail_variable kRailVariables[] = {
    {"MV2_PROCESS_TO_RAIL_MAPPING", ':', true}, {"MV2_IBA_HCA", ':', false}, {"OMPI_MCA_btl_openib_if_include", ',', false}};

// Variables that messaging never honours, with advice.
struct refused_variable {
  const char* name;
  const char* reason;
};
constexpr refused_variable kRefused[] = {
    {"MV2_GPUDIRECT_LIMIT",
     "UCX chooses by size itself; PEERLANE_LINK_GPU_LANES=0 keeps adapters away from GPU memory at every size"},
    {"MV2_NUM_HCAS", "rails are named, not counted; PEERLANE_LINK_RAILS names them"},
    {"MV2_NUM_PORTS", "rails are named, not counted; PEERLANE_LINK_RAILS names each port: mlx5_0:1,mlx5_0:2"},
    {"MV2_SM_SCHEDULING", "it is the old name of MV2_RAIL_SHARING_POLICY; set that"},
    {"OMPI_MCA_btl_openib_if_exclude", "rails are named, not left out; PEERLANE_LINK_RAILS names them"},
    {"OMPI_MCA_btl_tcp_if_include", "it names interfaces for Open MPI's own TCP only; PEERLANE_LINK_RAILS names rails"},
    {"OMPI_MCA_btl_tcp_if_exclude", "it names interfaces for Open MPI's own TCP only; PEERLANE_LINK_RAILS names rails"}};

std::string refusal(const char* name, const std::string& text, const char* reason) {
  return format("%s=%s is not used: %s", name, text.c_str(), reason);
}

// Why the variable is not used. Empty: it is not set, or it is used.
std::string refusal_of_rails(const rail_variable& variable, const std::string& adapters) {
  const auto given = env_read(variable.name);
  if (!given.is_set) return {};
  const std::string devices = devices_of(given.text, variable.separator);
  const bool is_used = !devices.empty() && has_all(adapters, devices);
  if (is_used) return {};
  return refusal(variable.name, given.text,
                 devices.empty() ? "messages take the names of adapters only; PEERLANE_LINK_RAILS names adapters"
                                 : "this machine lacks an adapter of it; PEERLANE_LINK_RAILS names adapters");
}

std::string refusal_of_policy(bool has_rails) {
  const auto given = env_read("MV2_RAIL_SHARING_POLICY");
  if (!given.is_set || given.text == "USE_FIRST") return {};
  const char* reason = "it is not one of USE_FIRST, FIXED_MAPPING";
  if (given.text == "ROUND_ROBIN") reason = "small messages take the first rail, large ones all; USE_FIRST says that";
  if (given.text == "FIXED_MAPPING") reason = "no rails are named; PEERLANE_LINK_RAILS names them";
  return given.text == "FIXED_MAPPING" && has_rails ? std::string() : refusal("MV2_RAIL_SHARING_POLICY", given.text, reason);
}

}  // namespace

std::string rails_of_mapping(const std::string& mapping) { return devices_of(mapping, ':'); }

foreign_rails rails_from_environment(const std::string& adapters) {
  for (const auto& variable : kRailVariables) {
    const auto given = env_read(variable.name);
    const std::string devices = given.is_set ? devices_of(given.text, variable.separator) : std::string();
    if (!devices.empty() && has_all(adapters, devices)) return {devices, variable.is_one_each};
  }
  return {};
}

bool forbids_gpu_rdma() {
  const auto given = env_read("UCX_IB_GPU_DIRECT_RDMA");
  return given.is_set && (given.text == "n" || given.text == "no" || given.text == "0" || given.text == "off");
}

std::vector<std::string> unused_settings(const std::string& adapters) {
  std::vector<std::string> out;
  const auto add = [&](std::string line) {
    if (!line.empty()) out.push_back(std::move(line));
  };
  const bool has_own_rails = env_read("PEERLANE_LINK_RAILS").is_set;
  if (!has_own_rails)
    for (const auto& variable : kRailVariables) add(refusal_of_rails(variable, adapters));
  add(refusal_of_policy(has_own_rails || !rails_from_environment(adapters).devices.empty()));
  for (const auto& [name, reason] : kRefused)
    if (const auto given = env_read(name); given.is_set) add(refusal(name, given.text, reason));
  return out;
}

}  // namespace pl::messaging
