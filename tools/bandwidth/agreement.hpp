// SPDX-License-Identifier: Apache-2.0
// Collective steps of a group: one rank's failure is the failure of all.
#pragma once

#include <string>
#include <vector>

#include "tools/bandwidth/group.hpp"

namespace pl::bandwidth {

// Collective. The failure of the lowest rank that has one, with that rank's name; else success.
status agree(group& ranks, const status& mine);

// Collective: one text of every rank, by rank.
result<std::vector<std::string>> gather_texts(group& ranks, const std::string& mine);

}  // namespace pl::bandwidth
