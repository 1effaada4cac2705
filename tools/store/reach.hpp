// SPDX-License-Identifier: Apache-2.0
// How subcommands reach the store: the options that locate it, and the client that they configure.
#pragma once

#include <memory>
#include <string>

#include "store/client/client.hpp"
#include "store/client/router.hpp"
#include "tools/common/options.hpp"

namespace pl::store_tools {

struct reach_options {
  std::string socket, connect, data;
  std::string tls_certificate, tls_key, tls_authority;
  std::string require;  // name of a path
  std::int64_t timeout_ms = 30'000;
  bool no_shm = false;
};
void add(tools::command_parser& parser, reach_options& options);

// The address that the options, or PEERLANE_STORE, give. Throws if none does.
store_client::address address_of(const reach_options& options);
// `copies` and `cuda` may be null: host memory only. Throws when the store cannot be reached.
std::unique_ptr<store_client::client> reach(const reach_options& options, copy::planner* copies = nullptr,
                                            const cu::driver_table* cuda = nullptr);

// The cluster that the store is a server of; null if it is in none. `store` was reached by the same options.
std::unique_ptr<store_client::router> cluster_of(const reach_options& options, store_client::client& store);

// The pool's number; with `make` a pool that is missing is made. Throws.
std::uint32_t pool_of(store_client::client& store, const std::string& name, bool make = false);
std::uint32_t pool_of(store_client::router& cluster, const std::string& name, bool make = false);
// The answer, or a tool_failure with its sentence.
store_client::reply must(store_client::reply got);
// "volatile", "logged", "durable". Throws for others; empty: nothing.
std::optional<store_protocol::durability> durability_option(const std::string& name);
// "path shm-direct, durable, version 17"
std::string describe_reply(const store_client::reply& got);

}  // namespace pl::store_tools
