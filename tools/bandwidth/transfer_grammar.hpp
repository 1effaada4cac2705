// SPDX-License-Identifier: Apache-2.0
// --transfer "H0 -> [ce] -> G0, G1 -> [sm:16] -> G0 x 64M": transfers that run at the same time (docs/bandwidth.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "tools/bandwidth/transfer_spec.hpp"

namespace pl::bandwidth {

// Transfers without a size get `default_bytes`. EINVAL: the message shows the text, a caret below the place, and what is
// allowed there. GPUs from `gpus` on are errors; negative: any number goes.
result<std::vector<transfer_spec>> parse_transfers(std::string_view text, std::uint64_t default_bytes, int gpus);

// One transfer as the grammar takes it, everything said: "H0 -> [sm:16@G1] -> G1".
std::string to_string(const transfer_spec& transfer);
// The same without sizes, for names of results: sizes are a column of their own.
std::string to_string(const std::vector<transfer_spec>& transfers);

}  // namespace pl::bandwidth
