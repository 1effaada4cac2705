// SPDX-License-Identifier: Apache-2.0
// Which cluster a server's data folder is of, and how far its map had come: a file in the folder. An etcd that has lost its
// data, was put back to an older state, or is another one, says nothing of the folder's pools; without this memory a server
// took that for the cluster's will and deleted them.
//
// Owns: nothing. Threads: one at a time for one file. Errors: errno values with the next step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.hpp"

namespace pl::store_cluster {

struct known_cluster {
  std::uint64_t id = 0;       // cluster_map::id
  std::uint64_t epoch = 0;    // of the newest map that was seen, or one of a second before
  std::int64_t revision = 0;  // of etcd, with that map and the pools of that time
};

std::string known_cluster_file(const std::string& folder);
// Empty: the folder has none, of a server of an earlier release or that never was in a cluster. EUCLEAN: it cannot be read.
result<std::optional<known_cluster>> read_known_cluster(const std::string& folder);
// Durable on return; the file is the old one or the new one.
status write_known_cluster(const std::string& folder, const known_cluster& now);
// EUCLEAN: a server that has this memory, and whose folder has pools of a cluster or not, must not act by what
// etcd has (epoch 0: no map).
status fits(const std::optional<known_cluster>& known, bool has_pools, const known_cluster& etcd_has,
            const std::string& file);

}  // namespace pl::store_cluster
