// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/transport.hpp"

#include <numeric>

#include "tools/common/tool.hpp"
#include "tools/p2p/one_sided_calls.hpp"

namespace pl::p2p {

collective_calls& transport::collectives() {
  throw tools::tool_failure(library() + " has no collectives: use --via ours, mpi or shim");
}

void one_sided_calls::open_window_on(void* /*memory*/, std::size_t /*bytes*/) {
  throw tools::tool_failure("windows of GPU memory are measured --via ours");
}

one_sided_calls& transport::one_sided() {
  throw tools::tool_failure(library() + ": its windows are not measured: --via ours or ucx");
}

double sum_over_ranks(transport& world, double mine) {
  const auto all = world.all_gather(mine);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

std::vector<double> gather_by_messages(transport& world, double mine) {
  const int ranks = world.size();
  std::vector<double> all(static_cast<std::size_t>(ranks), mine);
  std::vector<request> pending;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == world.rank()) continue;
    pending.push_back(
        world.irecv(&all[static_cast<std::size_t>(peer)], sizeof(double), memory_kind::host, peer, kCollectiveTag));
    pending.push_back(world.isend(&mine, sizeof mine, memory_kind::host, peer, kCollectiveTag));
  }
  world.waitall(pending);
  return all;
}

}  // namespace pl::p2p
