// SPDX-License-Identifier: Apache-2.0
#include "tools/store/open_store.hpp"

#include <cstdio>

#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"
#include "tools/store/files.hpp"

namespace pl::store_tools {

using store_client::batch_entry;
using store_client::reply;
using store_protocol::opcode;

std::vector<reply> open_store::batch(opcode op, std::span<const batch_entry> entries, bool is_atomic) {
  if (!cluster_) return store_->run_batch(op, pool_, entries, {is_atomic, -1});
  if (is_atomic) throw tools::tool_failure("--atomic: not possible in a cluster, whose keys are on several servers");
  return cluster_->run_batch(op, pool_, entries);
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
    std::fprintf(stderr, "%s: %s\n", printable(keys[i]).c_str(), tools::without_controls(replies[i].text).c_str());
    code = tools::kExitFailed;
  }
  return code;
}

}  // namespace pl::store_tools
