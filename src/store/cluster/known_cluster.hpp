// SPDX-License-Identifier: Apache-2.0
// Which cluster a server's data folder belongs to, and how far its map had advanced: a file in the folder. An etcd that
// has lost its data, was restored to an older state, or is another one, says nothing about the folder's pools. Without
// this file a server took that as the cluster's decision and deleted them.
//
// Owns nothing. One thread at a time for each file. Errors are errno values with the next step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.hpp"

namespace pl::store_cluster {

struct known_cluster {
  std::uint64_t id = 0;       // cluster_map::id
  std::uint64_t epoch = 0;    // of the newest map seen, or of one from at most a second before
  std::int64_t revision = 0;  // of etcd, with that map and its pools
};

std::string known_cluster_file(const std::string& folder);
// Empty if the folder has none: its server is of an earlier release or was never in a cluster. EUCLEAN if it cannot be
// read.
result<std::optional<known_cluster>> read_known_cluster(const std::string& folder);
// Durable on return; the file is always either the old one or the new one.
status write_known_cluster(const std::string& folder, const known_cluster& now);
// EUCLEAN if a server with this file must not act on what etcd has (epoch 0: no map). `has_pools`: its folder has pools
// of a cluster.
status fits(const std::optional<known_cluster>& known, bool has_pools, const known_cluster& etcd_has,
            const std::string& file);

}  // namespace pl::store_cluster
