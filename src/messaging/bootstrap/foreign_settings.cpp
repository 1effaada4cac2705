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

std::vector<std::string> adapters_of(const std::string& mapping) {
  std::vector<std::string> out;
  std::istringstream words(mapping);
  for (std::string word; std::getline(words, word, ':');) out.push_back(word);
  return out;
}

// As drivers name them: letters in lower case, an underscore, a number.
bool is_adapter_name(const std::string& word) {
  return word.find('_') != std::string::npos && std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::islower(c) || std::isdigit(c) || c == '_';
         });
}

bool has_all(const std::string& folder, const std::vector<std::string>& adapters) {
  std::error_code ignored;
  return std::all_of(adapters.begin(), adapters.end(),
                     [&](const std::string& one) { return std::filesystem::exists(folder + "/" + one, ignored); });
}

}  // namespace

std::string rails_of_mapping(const std::string& mapping) {
  std::string out;
  for (const auto& one : adapters_of(mapping)) {
    if (!is_adapter_name(one)) return {};
    out += (out.empty() ? "" : ",") + one + ":1";
  }
  return out;
}

std::string rails_from_environment(const std::string& adapters) {
  const auto mapping = env_read("MV2_PROCESS_TO_RAIL_MAPPING");
  if (!mapping.is_set || !has_all(adapters, adapters_of(mapping.text))) return {};
  return rails_of_mapping(mapping.text);
}

bool forbids_gpu_rdma() {
  const auto given = env_read("UCX_IB_GPU_DIRECT_RDMA");
  return given.is_set && (given.text == "n" || given.text == "no" || given.text == "0" || given.text == "off");
}

std::vector<std::string> unused_settings(const std::string& adapters) {
  std::vector<std::string> out;
  const auto mapping = env_read("MV2_PROCESS_TO_RAIL_MAPPING");
  const bool has_own_rails = env_read("PEERLANE_LINK_RAILS").is_set;
  if (mapping.is_set && !has_own_rails && rails_from_environment(adapters).empty()) {
    const bool is_missing = !rails_of_mapping(mapping.text).empty();
    out.push_back(format("MV2_PROCESS_TO_RAIL_MAPPING=%s is not used: %s; PEERLANE_LINK_RAILS names adapters",
                         mapping.text.c_str(),
                         is_missing ? "this machine lacks an adapter of it" : "messages take the names of adapters only"));
  }
  if (const auto limit = env_read("MV2_GPUDIRECT_LIMIT"); limit.is_set)
    out.push_back(
        format("MV2_GPUDIRECT_LIMIT=%s is not used: UCX chooses by size itself; PEERLANE_LINK_GPU_LANES=0 keeps "
               "adapters away from GPU memory at every size",
               limit.text.c_str()));
  return out;
}

}  // namespace pl::messaging
