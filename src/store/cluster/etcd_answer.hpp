// SPDX-License-Identifier: Apache-2.0
// Parses answers of etcd's gateway. Pure functions that accept any bytes, because something else may answer at etcd's
// address. EPROTO if it is not such an answer.
#pragma once

#include <string>

#include "store/cluster/etcd.hpp"

namespace pl::store_cluster::etcd_answer {

// Each takes an answer's body, or passes its failure on.
result<etcd::snapshot> listed(const result<std::string>& body);
result<bool> succeeded(const result<std::string>& body);
result<std::int64_t> lease_given(const result<std::string>& body);
result<std::int64_t> seconds_left(const result<std::string>& body);
status done(const result<std::string>& body);

}  // namespace pl::store_cluster::etcd_answer
