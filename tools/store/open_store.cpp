// SPDX-License-Identifier: Apache-2.0
#include "tools/store/open_store.hpp"

#include <cstdio>

#include "tools/common/tool.hpp"

namespace pl::store_tools {

using store_client::batch_entry;
using store_client::reply;
using store_protocol::opcode;

namespace {

store_client::routed_ptr make_routed(store_client::router& cluster, opcode op, std::uint32_t pool, const batch_entry& one) {
  store_client::put_request options;
  options.only = one.only;
  options.level = one.level;
  if (one.ttl_ms != 0) options.ttl_ms = one.ttl_ms;
  if (op == opcode::batch_put) return cluster.make_put(pool, one.key, one.buffer, options);
  if (op == opcode::batch_erase) return cluster.make_erase(pool, one.key, options);
  return cluster.make_get(pool, one.key, one.buffer);
}

}  // namespace

std::vector<reply> open_store::batch(opcode op, std::span<const batch_entry> entries, bool is_atomic) {
  if (!cluster_) return store_->run_batch(op, pool_, entries, {is_atomic, -1});
  if (is_atomic) throw tools::tool_failure("--atomic: a cluster's keys lie on several servers, which have no such batch");
  std::vector<reply> out;
  if (op == opcode::batch_exists) {
    for (const auto& one : entries) out.push_back(cluster_->stat(pool_, one.key));
    return out;
  }
  std::vector<store_client::routed_ptr> begun;
  for (const auto& one : entries) begun.push_back(make_routed(*cluster_, op, pool_, one));
  cluster_->start(begun);
  for (const auto& one : begun) {
    cluster_->wait(one);
    out.push_back(one->got);
  }
  return out;
}

void open_store::find(store_client::key_search search, const std::function<bool(const store_protocol::key_entry&)>& each) {
  for (;;) {
    const auto got = must(cluster_ ? cluster_->find(pool_, search) : store_->run(store_->make_find(pool_, search)));
    for (const auto& one : tools::must(store_protocol::decode_keys(got.body)))
      if (!each(one)) return;
    if (!got.more) return;
    search.after = got.fields->after.value_or("");
  }
}

int report_failures(std::span<const std::string> keys, std::span<const reply> replies, int forgiven) {
  int code = tools::kExitOk;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    if (replies[i].status == 0 || replies[i].status == forgiven) continue;
    std::fprintf(stderr, "%s: %s\n", keys[i].c_str(), replies[i].text.c_str());
    code = tools::kExitFailed;
  }
  return code;
}

}  // namespace pl::store_tools
