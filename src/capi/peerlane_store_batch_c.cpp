// SPDX-License-Identifier: Apache-2.0
// The store's C interface for many keys at once. The contract is in peerlane/store.h.
#include <peerlane/store.h>

#include <algorithm>
#include <vector>

#include "capi/errno_guard.hpp"
#include "capi/open_store.hpp"
#include "capi/store_requests.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_store;
using pl::store_client::batch_entry;
using pl::store_client::memory;
using pl::store_client::reply;
using stores = pl::open_stores;
namespace wire = pl::store_protocol;

wire::opcode opcode_of(std::uint32_t request) {
  switch (request) {
    case PEERLANE_STORE_PUT:
      return wire::opcode::batch_put;
    case PEERLANE_STORE_ERASE:
      return wire::opcode::batch_erase;
    case PEERLANE_STORE_EXISTS:
      return wire::opcode::batch_exists;
    default:
      return wire::opcode::batch_get;
  }
}

// Checks that all items are valid and of one kind, and classifies their memory.
pl::result<std::vector<memory>> check_items(const open_store& opened, const peerlane_store_item* items, std::size_t count) {
  std::vector<memory> out;
  for (std::size_t i = 0; i < count; ++i) {
    auto item = items[i];
    const auto wrong = [&](int code, const std::string& reason) {
      return pl::failure{code, "item " + std::to_string(i) + ": " + reason};
    };
    if (item.request != items->request || item.pool != items->pool)
      return wrong(EINVAL, "all items of a batch have one request and one pool");
    if (item.request == PEERLANE_STORE_EXISTS) {
      item.request = PEERLANE_STORE_ERASE;
      item.value = peerlane_host_buffer(nullptr, 0);
    }
    if (const auto fine = pl::check_item(item); !fine) return wrong(fine.code(), fine.error().message);
    const auto buffer = item.request == PEERLANE_STORE_ERASE ? pl::result<memory>(memory{}) : opened.classify(item.value);
    if (!buffer) return wrong(buffer.code(), buffer.error().message);
    out.push_back(*buffer);
  }
  return out;
}

// Whether the item needs something that a frame of many does not carry.
bool goes_alone(const peerlane_store_item& item) {
  const auto put = pl::taken(item.put_options);
  const auto get = pl::taken(item.get_options);
  if (item.request == PEERLANE_STORE_PUT) return put.is_part != 0 || put.on_stream != 0 || put.timeout_ms != 0;
  if (item.request == PEERLANE_STORE_GET)
    return get.offset_bytes != 0 || get.on_stream != 0 || get.verify != 0 || get.timeout_ms != 0;
  return item.request == PEERLANE_STORE_ERASE && put.timeout_ms != 0;
}

batch_entry entry_of(const peerlane_store_item& item, const memory& buffer) {
  batch_entry out;
  out.key = pl::key_of(item.key, item.key_size_bytes);
  out.buffer = buffer;
  if (item.request == PEERLANE_STORE_PUT || item.request == PEERLANE_STORE_ERASE) {
    const auto options = pl::put_request_of(item.put_options);
    out.only = options.only;
    out.level = options.level;
    out.user_flags = options.user_flags.value_or(0);
    out.ttl_ms = options.ttl_ms.value_or(0);
  }
  return out;
}

std::vector<batch_entry> entries_of(const open_store& opened, const peerlane_store_item* items,
                                    const std::vector<memory>& buffers) {
  std::vector<batch_entry> out;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    out.push_back(entry_of(items[i], buffers[i]));
    if (goes_alone(items[i])) out.back().alone = pl::make_item(*opened.store, items[i], buffers[i]);
  }
  return out;
}

// A cluster's keys are on several servers, each of which gets its own as one batch. Items that go alone are started
// first.
std::vector<reply> ask_cluster(const open_store& opened, const peerlane_store_item* items,
                               const std::vector<memory>& buffers, int timeout_ms) {
  std::vector<std::pair<std::size_t, pl::store_client::routed_ptr>> begun;
  std::vector<std::size_t> batched;
  std::vector<batch_entry> entries;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (goes_alone(items[i])) {
      begun.emplace_back(i, pl::make_item(*opened.cluster, items[i], buffers[i]));
      continue;
    }
    batched.push_back(i);
    entries.push_back(entry_of(items[i], buffers[i]));
  }
  std::vector<pl::store_client::routed_ptr> alone;
  for (const auto& [i, one] : begun) alone.push_back(one);
  opened.cluster->start(alone);
  std::vector<reply> out(buffers.size());
  auto got = opened.cluster->run_batch(opcode_of(items->request), items->pool, entries, timeout_ms);
  for (std::size_t i = 0; i < batched.size(); ++i) out[batched[i]] = std::move(got[i]);
  for (const auto& [i, one] : begun) {
    opened.cluster->wait(one);
    out[i] = one->got;
  }
  return out;
}

}  // namespace

PL_EXPORT int peerlane_store_batch(peerlane_store_t store, const peerlane_store_item* items, size_t count,
                                   const peerlane_batch_options* given, peerlane_op_info* infos) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (count == 0) return 0;
    if (items == nullptr || infos == nullptr) return fail(EINVAL, kNullPointer);
    if (const auto fine = pl::check_count(count); !fine) return fail(fine.error());
    if (const auto sized = pl::check_size(given); !sized) return fail(sized.error());
    const auto options = pl::taken(given);
    if (options.reserved != 0) return fail(EINVAL, "options->reserved must be 0");
    if (items->request < PEERLANE_STORE_PUT || items->request > PEERLANE_STORE_EXISTS)
      return fail(EINVAL, "unknown request: PEERLANE_STORE_PUT, _GET, _ERASE or _EXISTS");
    const bool changes = items->request == PEERLANE_STORE_PUT || items->request == PEERLANE_STORE_ERASE;
    if (options.is_atomic != 0 && !changes) return fail(EINVAL, "a batch that reads is not atomic");
    if (options.is_atomic != 0 && one->cluster)
      return fail(ENOTSUP, "the keys of a cluster are on several servers, which have no atomic batches");
    const auto buffers = check_items(*one, items, count);
    if (!buffers) return fail(buffers.error());
    const int timeout_ms = options.timeout_ms != 0 ? pl::limit_of(options.timeout_ms) : -1;
    std::vector<reply> got;
    if (one->cluster) {
      got = ask_cluster(*one, items, *buffers, timeout_ms);
    } else {
      pl::store_client::batch_settings settings;
      settings.atomic = options.is_atomic != 0;
      settings.timeout_ms = timeout_ms;
      const auto entries = entries_of(*one, items, *buffers);
      got = one->store->run_batch(opcode_of(items->request), items->pool, entries, settings);
      // Refused before anything was requested.
      const int first = got.front().status;
      const bool is_whole = settings.atomic && (first == ENOTSUP || first == EMSGSIZE || first == EINVAL);
      if (is_whole) return fail(first, got.front().text.c_str());
    }
    for (std::size_t i = 0; i < count; ++i) infos[i] = pl::info_from(got[i]);
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_erase_prefix(peerlane_store_t store, peerlane_pool_t pool, const void* prefix,
                                          size_t prefix_size_bytes, uint64_t* erased) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (const auto fine = pl::check_key(prefix, prefix_size_bytes); !fine) return fail(fine.error());
    const auto text = pl::key_of(prefix, prefix_size_bytes);
    const reply got = one->cluster ? one->cluster->erase_prefix(pool, text) : one->store->erase_prefix(pool, text);
    if (erased != nullptr && got.status == 0) *erased = got.result.value_bytes;
    return got.status == 0 ? 0 : fail(got.status, got.text.c_str());
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_scan(peerlane_store_t store, peerlane_pool_t pool, const peerlane_scan_options* given,
                                  int (*each)(void*, const void*, size_t, const peerlane_op_info*), void* context) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (each == nullptr) return fail(EINVAL, kNullPointer);
    if (const auto sized = pl::check_size(given); !sized) return fail(sized.error());
    const auto options = pl::taken(given);
    if (std::max(options.prefix_size_bytes, options.after_size_bytes) > wire::kMaxTailBytes)
      return fail(EMSGSIZE, "keys and prefixes have at most 4096 bytes");
    const bool has_null = (options.prefix == nullptr && options.prefix_size_bytes != 0) ||
                          (options.after == nullptr && options.after_size_bytes != 0);
    if (has_null) return fail(EINVAL, kNullPointer);
    pl::store_client::key_search search;
    search.prefix = pl::key_of(options.prefix, options.prefix_size_bytes);
    search.regex = pl::text_or_empty(options.regex);
    search.after = pl::key_of(options.after, options.after_size_bytes);
    for (std::uint64_t reported = 0;;) {
      search.limit = options.limit == 0 ? 0 : options.limit - reported;
      const auto got =
          one->cluster ? one->cluster->find(pool, search) : one->store->run(one->store->make_find(pool, search));
      if (got.status != 0) return fail(got.status, got.text.c_str());
      const auto keys = wire::decode_keys(got.body);
      if (!keys) return fail(keys.error());
      for (const auto& key : *keys) {
        peerlane_op_info info;
        peerlane_op_info_clear(&info);
        info.size_bytes = key.value_bytes;
        info.version = key.version;
        if (const int code = each(context, key.key.data(), key.key.size(), &info)) return code;
        if (++reported == options.limit) return 0;
      }
      if (!got.more) return 0;
      search.after = got.fields->after.value_or("");
    }
  }
  PL_NO_EXCEPTIONS
}
