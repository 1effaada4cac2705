// SPDX-License-Identifier: Apache-2.0
// The batches of a client in a soak: several keys in one frame, each with its own outcome, or all or nothing.
#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/protocol/wire.hpp"
#include "tools/soak/store_client_soak.hpp"

namespace pl::soak {
namespace {

using store_client::batch_entry;
using store_client::reply;
using store_protocol::opcode;

constexpr std::size_t kMaxKeysOfBatch = 12;
constexpr std::size_t kRoomBytes = store_client::client::kMaxBatchedBytes;  // longer values are shown in part
constexpr std::size_t kMaxAtomicValueBytes = 100'000;                       // together they fit a frame

store_client::memory memory_of(std::vector<unsigned char>& bytes) {
  return {reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size(), std::nullopt};
}

}  // namespace

// Keys of one pool, each once.
std::vector<store_client_soak::key*> store_client_soak::some_keys(std::size_t most) {
  const std::size_t first = random_() % kLevels * kKeys;
  std::vector<key*> out;
  for (std::size_t i = 0; i < kKeys; ++i) out.push_back(&keys_[first + i]);
  std::shuffle(out.begin(), out.end(), random_);
  out.resize(1 + random_() % most);
  return out;
}

void store_client_soak::put_batch() {
  const auto chosen = some_keys(kMaxKeysOfBatch);
  const bool is_atomic = chosen.front()->is_kept() && random_() % 2 == 0;
  std::vector<std::vector<unsigned char>> values;
  std::vector<batch_entry> entries;
  atomic_batch group;
  for (key* const one : chosen) {
    const state_number state = ++last_;
    const std::size_t size = is_atomic ? std::min(random_size(), kMaxAtomicValueBytes) : random_size();
    values.push_back(value_bytes(one->id, state, size));
    one->begin(state);
    group.items.push_back({one, state, one->changes});
    batch_entry entry;
    entry.key = one->name;
    entry.buffer = memory_of(values.back());
    entries.push_back(entry);
  }
  const auto done = client_->run_batch(opcode::batch_put, pools_[static_cast<unsigned>(chosen.front()->pool)], entries,
                                       {.atomic = is_atomic});
  std::size_t acknowledged = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (done[i].status != 0) continue;
    chosen[i]->acknowledge(group.items[i].state);
    chosen[i]->expiring = 0;
    ++acknowledged;
  }
  seen_.count(is_atomic ? "atomic batches" : "batches put");
  seen_.count("puts of batches acknowledged", acknowledged);
  if (is_atomic && acknowledged != 0 && acknowledged != chosen.size())
    seen_.violation(format("an atomic batch: %zu of %zu puts were acknowledged", acknowledged, chosen.size()));
  if (is_atomic && acknowledged == 0 && chosen.size() > 1) unknown_batches_.push_back(std::move(group));
  notice_lost();
}

void store_client_soak::get_batch() {
  const auto chosen = some_keys(kMaxKeysOfBatch);
  std::vector<std::vector<unsigned char>> room(chosen.size(), std::vector<unsigned char>(kRoomBytes));
  std::vector<batch_entry> entries(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    entries[i].key = chosen[i]->name;
    entries[i].buffer = memory_of(room[i]);
  }
  const std::uint64_t asked_ns = monotonic_ns();
  const auto done = client_->run_batch(opcode::batch_get, pools_[static_cast<unsigned>(chosen.front()->pool)], entries);
  notice_lost();
  bool any = false;
  for (std::size_t i = 0; i < chosen.size(); ++i) any = take_answer(*chosen[i], done[i], room[i].data(), asked_ns) || any;
  seen_.count("batches got");
  if (!any) pause_ms(run_, 10);
}

void store_client_soak::erase_batch() {
  const auto chosen = some_keys(kMaxKeysOfBatch);
  std::vector<batch_entry> entries(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    entries[i].key = chosen[i]->name;
    chosen[i]->begin(0);
  }
  const auto done = client_->run_batch(opcode::batch_erase, pools_[static_cast<unsigned>(chosen.front()->pool)], entries);
  notice_lost();
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (done[i].status == 0) chosen[i]->acknowledge(0);
  seen_.count("batches erased");
}

// "client 1 key 2" and "client 1 key 20" to "client 1 key 23".
void store_client_soak::erase_prefix() {
  const key& first = keys_[random_() % keys_.size()];
  std::vector<key*> meant;
  for (key& one : keys_)
    if (one.pool == first.pool && one.name.starts_with(first.name)) meant.push_back(&one);
  for (key* const one : meant) one->begin(0);
  const reply done = client_->erase_prefix(pools_[static_cast<unsigned>(first.pool)], first.name);
  notice_lost();
  if (done.status == 0)
    for (key* const one : meant) one->acknowledge(0);
  seen_.count(done.status == 0 ? "prefixes erased" : "prefixes not erased");
}

// Returns false if the store does not answer.
bool store_client_soak::read_all(const atomic_batch& group, std::size_t& done) {
  done = 0;
  for (const atomic_batch::item& one : group.items) {
    if (!get(*one.changed)) return false;
    done += one.changed->shown == one.state ? 1 : 0;
  }
  return true;
}

// Before anything else changes their keys, so as soon as the store answers again. It may still be carrying a batch out: keys
// that were read before and after that pass like a part of it once, and not twice.
void store_client_soak::check_unknown_batches() {
  constexpr unsigned kMaxTries = 100;
  std::erase_if(unknown_batches_, [&](atomic_batch& group) {
    std::size_t done = 0;
    for (unsigned pass = 0; pass < 2; ++pass) {
      if (!read_all(group, done)) return ++group.tries == kMaxTries;
      if (done == 0 || done == group.items.size()) break;
      pause_ms(run_, 200);
    }
    seen_.count("atomic batches compared");
    if (done != 0 && done != group.items.size())
      seen_.violation(
          format("an atomic batch whose answer was lost was done in part: %zu of %zu keys", done, group.items.size()));
    return true;
  });
}

// After every key was read, with nothing in progress: checks batches whose keys nothing has changed since.
void store_client_soak::check_atomic_batches() {
  for (const atomic_batch& group : unknown_batches_) {
    std::size_t unchanged = 0, done = 0;
    for (const atomic_batch::item& one : group.items) {
      if (one.changed->changes != one.change || !one.changed->shown) continue;
      ++unchanged;
      done += *one.changed->shown == one.state ? 1 : 0;
    }
    seen_.count("atomic batches compared", unchanged > 1 ? 1 : 0);
    if (done != 0 && done != unchanged)
      seen_.violation(format("an atomic batch whose answer was lost was done in part: %zu of %zu keys", done, unchanged));
  }
}

}  // namespace pl::soak
