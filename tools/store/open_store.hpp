// SPDX-License-Identifier: Apache-2.0
// A pool of a store, or of the cluster that the store is one of, and what subcommands share that put and get.
#pragma once

#include <functional>
#include <span>

#include "tools/store/reach.hpp"

namespace pl::store_tools {

class open_store {
 public:
  open_store(const reach_options& target, const std::string& pool, bool make_pool = false)
      : store_(reach(target)), cluster_(cluster_of(target, *store_)) {
    pool_ = cluster_ ? pool_of(*cluster_, pool, make_pool) : pool_of(*store_, pool, make_pool);
  }
  store_client::reply stat(const std::string& key) {
    return cluster_ ? cluster_->stat(pool_, key) : store_->run(store_->make_plain(store_protocol::opcode::stat, pool_, key));
  }
  store_client::reply put(const std::string& key, const store_client::memory& source,
                          const store_client::put_request& options) {
    return cluster_ ? cluster_->put(pool_, key, source, options)
                    : store_->run(store_->make_put(pool_, key, source, options));
  }
  store_client::reply get(const std::string& key, const store_client::memory& destination,
                          const store_client::get_request& options) {
    return cluster_ ? cluster_->get(pool_, key, destination, options)
                    : store_->run(store_->make_get(pool_, key, destination, options));
  }
  // Many keys by one call; the answers are in their order.
  std::vector<store_client::reply> batch(store_protocol::opcode op, std::span<const store_client::batch_entry> entries,
                                         bool is_atomic = false);
  // How many keys there were.
  std::uint64_t erase_prefix(const std::string& prefix) {
    return must(cluster_ ? cluster_->erase_prefix(pool_, prefix) : store_->erase_prefix(pool_, prefix)).result.value_bytes;
  }
  // Every key in order, a page at a time, until `each` returns false.
  void find(store_client::key_search search, const std::function<bool(const store_protocol::key_entry&)>& each);

 private:
  std::unique_ptr<store_client::client> store_;
  std::unique_ptr<store_client::router> cluster_;
  std::uint32_t pool_ = 0;
};

struct condition_options {
  bool if_absent = false;
  std::int64_t if_version = 0;  // 0: not given; versions begin at 1
  enum request { of_put, of_erase };
  void add(tools::command_parser& parser, request kind = of_put) {
    if (kind == of_put) parser.flag("--if-absent", if_absent, "Only if there is no such key (EEXIST)");
    parser.integer("--if-version", if_version, 1, INT64_MAX, "Only if this is the current version (ESTALE) [any]");
  }
  std::optional<store_protocol::precondition> get() const {
    if (if_absent && if_version != 0)
      throw tools::tool_failure("--if-absent and --if-version: an absent key has no version; give one of them");
    if (if_absent) return store_protocol::precondition{store_protocol::condition::if_absent, 0};
    if (if_version != 0)
      return store_protocol::precondition{store_protocol::condition::if_version, static_cast<std::uint64_t>(if_version)};
    return std::nullopt;
  }
};

// One line on standard error for each key that failed, but for those that ended with `forgiven`; the exit code.
int report_failures(std::span<const std::string> keys, std::span<const store_client::reply> replies, int forgiven = 0);

}  // namespace pl::store_tools
