// SPDX-License-Identifier: Apache-2.0
// File descriptors handed from rank to rank within one host.
#pragma once

#include <vector>

#include "os/unique_fd.hpp"
#include "tools/bandwidth/group.hpp"

namespace pl::bandwidth {

// Collective; all ranks on one host. One descriptor of every rank, by rank; the own one's place stays empty.
result<std::vector<unique_fd>> exchange_descriptors(group& ranks, int mine);

}  // namespace pl::bandwidth
