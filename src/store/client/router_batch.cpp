// SPDX-License-Identifier: Apache-2.0
// The router's batches: the keys of one server form one batch (client_batch.cpp), and all servers work in parallel.
//
//   by server ─▶ a thread each: client::run_batch ─▶ not now, not here ──▶ sent before? ─yes─▶ alone, with its number
//        ▲                                                                     └──no──▶ the next round
//        └──────────────────────────── the map, once a round ◀─────────────────────────────────┘
//
// A change that was sent may have been applied, and servers recognise it only by its number. So it is retried alone,
// before this client has used so many more numbers that a server forgets it.
#include <algorithm>
#include <map>
#include <thread>

#include "os/blocked_signals.hpp"
#include "store/client/interruption.hpp"
#include "store/client/router.hpp"
#include "store/client/router_tries.hpp"

namespace pl::store_client {

using store_protocol::opcode;

struct router::batch_call {
  opcode op;
  std::uint32_t pool = 0;
  std::span<const batch_entry> entries;
  clock::time_point end;
  std::vector<reply> out;  // each part writes its own entries
  bool changes() const noexcept { return op == opcode::batch_put || op == opcode::batch_erase; }
};

namespace {

// Fewer values finish sooner as single operations, which share system calls and need no threads: with 16 values, a
// batch took up to twice as long, and so did gets and erases of 500 (docs/results/store, cluster_batch_2cpu.json).
constexpr std::size_t few_values(opcode op) noexcept {
  return op == opcode::batch_get || op == opcode::batch_erase ? 1024 : 256;
}

}  // namespace

routed_ptr router::made_of(opcode op, std::uint32_t pool, const batch_entry& entry, clock::time_point end) const {
  const bool changes = op == opcode::batch_put || op == opcode::batch_erase;
  auto one = made(pool, entry.key, entry.buffer.bytes, changes, -1, [op, entry](client& connection, std::uint32_t number) {
    return connection.make_alone(op, number, entry, 0, -1);
  });
  one->deadline = end;
  return one;
}

std::vector<reply> router::run_singly(const batch_call& call) {
  std::vector<routed_ptr> begun;
  for (const batch_entry& one : call.entries) begun.push_back(made_of(call.op, call.pool, one, call.end));
  start(begun);
  std::vector<reply> out;
  for (const routed_ptr& one : begun) {
    wait(one);
    out.push_back(one->got);
  }
  return out;
}

std::vector<reply> router::run_batch(opcode op, std::uint32_t pool, std::span<const batch_entry> entries, int timeout_ms) {
  batch_call call{op, pool, entries, end_of(timeout_ms), std::vector<reply>(entries.size())};
  const unsigned copies = copies_of(pool);
  if (copies == 0) return std::vector<reply>(entries.size(), failed_reply(ENXIO, "no such pool is open"));
  if (entries.size() < few_values(op)) return run_singly(call);
  std::vector<std::size_t> left(entries.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (auto pause = kFirstPause; !left.empty(); pause = std::min(pause * 2, kLastPause)) {
    const auto map = current_map();
    std::map<std::string, std::vector<std::size_t>> parts;
    for (const std::size_t i : left) parts[map->endpoint_for(copies, entries[i].key)].push_back(i);
    run_parts(call, parts);
    std::erase_if(left, [&](std::size_t i) { return !may_pass(call.out[i].status); });
    if (left.empty()) break;
    if (clock::now() + pause >= call.end) {
      for (const std::size_t i : left)
        if (const std::string waits = map->why_waiting(copies, entries[i].key); !waits.empty() && call.out[i].text != waits)
          call.out[i].text += "; " + waits;
      break;
    }
    if (const auto failed = pause_for_newer_map(pause, call.end)) {
      for (const std::size_t i : left) call.out[i] = *failed;
      break;
    }
  }
  return std::move(call.out);
}

// Runs each part on a thread of its own, the last one on this thread. If no thread can be started, runs them one after
// the other.
void router::run_parts(batch_call& call, const std::map<std::string, std::vector<std::size_t>>& parts) {
  std::vector<std::thread> others;
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    if (std::next(part) != parts.end()) {
      auto other = try_start_thread("asks a server", [this, &call, part] { run_part(call, part->first, part->second); });
      if (other) {
        others.push_back(*std::move(other));
        continue;
      }
    }
    run_part(call, part->first, part->second);
  }
  for (std::thread& one : others) one.join();
}

void router::run_part(batch_call& call, const std::string& endpoint, std::span<const std::size_t> items) {
  const auto refuse = [&](std::span<const std::size_t> rest, const reply& reason) {
    for (const std::size_t i : rest) call.out[i] = reason;
  };
  if (endpoint.empty()) return refuse(items, failed_reply(EAGAIN, "no server has the key's slot yet"));
  const std::size_t most = call.changes() ? client::kChangesAtATime : items.size();
  for (std::size_t first = 0; first < items.size(); first += most) {
    const auto part = items.subspan(first, std::min(most, items.size() - first));
    const auto connection = reach(endpoint, call.end);
    const auto pool =
        connection ? pool_at(endpoint, *connection, call.pool, call.end) : result<std::uint32_t>(connection.error());
    if (!pool) {
      if (connection && may_pass(pool.code())) forget(endpoint, *connection);
      return refuse(items.subspan(first), failed_reply(pool.code(), pool.error().message));
    }
    if (ask_batch(call, *connection, *pool, part)) continue;
    forget(endpoint, *connection);
    return refuse(items.subspan(first + part.size()), failed_reply(EAGAIN, "the client is looking for another server"));
  }
}

// Returns false if the connection must be dropped.
bool router::ask_batch(batch_call& call, const client_ptr& connection, std::uint32_t pool,
                       std::span<const std::size_t> items) {
  std::vector<batch_entry> list;
  std::uint64_t bytes = 0;
  for (const std::size_t i : items) {
    list.push_back(call.entries[i]);
    bytes += call.entries[i].buffer.bytes;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(call.end - clock::now());
  const auto timeout = std::min(left, std::chrono::milliseconds(options_.try_ms) + time_for(bytes));
  std::vector<std::uint64_t> numbers;
  batch_settings settings;
  settings.timeout_ms = static_cast<int>(std::max<std::int64_t>(timeout.count(), 1));
  settings.numbers = &numbers;
  auto replies = connection->run_batch(call.op, pool, list, settings);
  bool is_there = true;
  std::vector<std::pair<std::size_t, routed_ptr>> again;
  for (std::size_t i = 0; i < items.size(); ++i) {
    reply& got = call.out[items[i]] = std::move(replies[i]);
    is_there = is_there && !is_about_connection(got.status);
    if (!call.changes() || numbers[i] == 0 || !may_pass(got.status)) continue;
    auto one = made_of(call.op, call.pool, call.entries[items[i]], call.end);
    one->request_number = {connection->id(), numbers[i]};
    again.emplace_back(items[i], std::move(one));
  }
  if (again.empty()) return is_there;
  std::vector<routed_ptr> list_again;
  for (const auto& [item, one] : again) list_again.push_back(one);
  retries_ += again.size();
  start(list_again);
  for (const auto& [item, one] : again) {
    wait(one);
    call.out[item] = one->got;
  }
  return is_there;
}

}  // namespace pl::store_client
