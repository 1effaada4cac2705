// SPDX-License-Identifier: Apache-2.0
// The original's -j: one object with all results (docs/bandwidth-testcases.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/bandwidth/compat_text.hpp"

namespace pl::bandwidth {

// `error` and `warning`: the original's members of these names; empty: absent. Outcomes with the
// index kUnknownTestcase are testcases that were asked for and do not exist.
std::string compat_json(const compat_environment& environment, std::span<const test_outcome> outcomes,
                        const compat_style& style, const std::string& error, const std::string& warning);

// The layout of the original's JSON library: three spaces, " : " between key and value, brackets on lines of their own.
std::string styled_json(const nlohmann::json& value);

}  // namespace pl::bandwidth
