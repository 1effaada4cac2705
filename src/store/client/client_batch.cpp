// SPDX-License-Identifier: Apache-2.0
// Many keys in a few frames.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "store/client/client.hpp"
#include "store/protocol/batch.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
namespace flag = store_protocol::flag;
namespace capability = store_protocol::capability;

// What of a frame the texts of failures and the numbers may take beside the values.
constexpr std::uint64_t kAnswerRoom = 512u << 10;
constexpr std::size_t kChangesAtATime = 512;

reply refused(int code, std::string text) {
  reply out;
  out.status = code;
  out.text = std::move(text);
  return out;
}

bool changes(opcode op) { return op == opcode::batch_put || op == opcode::batch_erase; }

}  // namespace

struct client::batch_frame {
  operation_ptr operation;
  std::vector<std::size_t> items;  // of the entries
  std::string body;
  std::uint64_t answer_bytes = 0;
  std::optional<store_protocol::durability> level;
};

operation_ptr client::make_alone(opcode op, std::uint32_t pool, const batch_entry& entry, int timeout_ms) {
  if (entry.alone) return entry.alone;
  if (op == opcode::batch_exists) return make_plain(opcode::stat, pool, entry.key, timeout_ms);
  if (op == opcode::batch_get) {
    get_request options;
    options.timeout_ms = timeout_ms;
    options.is_one_of_many = true;
    return make_get(pool, entry.key, entry.buffer, options);
  }
  put_request options;
  options.level = entry.level;
  options.only = entry.only;
  options.timeout_ms = timeout_ms;
  if (op == opcode::batch_erase) return make_erase(pool, entry.key, options);
  if (entry.user_flags != 0) options.user_flags = entry.user_flags;
  if (entry.ttl_ms != 0) options.ttl_ms = entry.ttl_ms;
  return make_put(pool, entry.key, entry.buffer, options);
}

// The frames of those entries that go in some.
std::vector<client::batch_frame> client::make_frames(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                                     const batch_settings& settings) {
  std::vector<batch_frame> out;
  const std::size_t most =
      changes(op) && !settings.atomic ? store_protocol::kMaxBatchChanges : store_protocol::kMaxBatchItems;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const batch_entry& one = entries[i];
    const bool fits = one.buffer.bytes <= kMaxBatchedBytes || settings.atomic;
    const bool good_key = !one.key.empty() && one.key.size() <= store_protocol::kMaxKeyBytes;
    if (one.alone || one.buffer.device || !fits || !good_key) continue;
    const std::size_t bytes =
        store_protocol::kBatchItemBytes + one.key.size() + (op == opcode::batch_put ? one.buffer.bytes : 0);
    const std::uint64_t answer = op == opcode::batch_get ? one.buffer.bytes : 0;
    const auto is_full = [&](const batch_frame& frame) {
      return frame.items.size() == most || frame.level != one.level ||
             frame.body.size() + bytes > store_protocol::kMaxBodyBytes ||
             frame.answer_bytes + answer > store_protocol::kMaxBodyBytes - kAnswerRoom;
    };
    if (out.empty() || (is_full(out.back()) && !settings.atomic)) out.emplace_back().level = one.level;
    batch_frame& frame = out.back();
    frame.items.push_back(i);
    frame.answer_bytes += answer;
    store_protocol::batch_item item;
    item.key = one.key;
    item.only = one.only.value_or(store_protocol::precondition{});
    item.user_flags = one.user_flags;
    item.ttl_ms = one.ttl_ms;
    item.room = one.buffer.bytes;
    if (op == opcode::batch_put) item.value = {reinterpret_cast<const char*>(one.buffer.address), one.buffer.bytes};
    store_protocol::append(frame.body, item);
  }
  for (batch_frame& frame : out) {
    frame.operation = make_plain(op, pool, {}, settings.timeout_ms);
    frame.operation->body = std::move(frame.body);
    frame.operation->head.value_bytes = frame.answer_bytes;
    frame.operation->fields.level = frame.level;
    if (settings.atomic) frame.operation->head.flags |= flag::atomic;
    if (!changes(op)) continue;
    const lock_t hold(lock_);
    frame.operation->fields.request_number = {client_id_, next_sequence_};
    next_sequence_ += settings.atomic ? 1 : frame.items.size();
  }
  return out;
}

void client::take_outcomes(const batch_frame& frame, std::span<const batch_entry> entries, std::vector<reply>& out) {
  const reply& got = frame.operation->got;
  const auto outcomes = got.status == 0 ? store_protocol::decode_outcomes(got.body)
                                        : result<std::vector<store_protocol::batch_outcome>>(failure{got.status, got.text});
  const bool matches = outcomes && outcomes->size() == frame.items.size();
  const failure reason = !outcomes ? outcomes.error() : failure{EPROTO, "the answer to a batch has another number of items"};
  for (std::size_t i = 0; i < frame.items.size(); ++i) {
    reply& reported = out[frame.items[i]];
    if (!matches) {
      reported = refused(reason.code, reason.message);
      continue;
    }
    const store_protocol::batch_outcome& one = (*outcomes)[i];
    reported = reply{};
    reported.status = one.status;
    if (one.status != 0) reported.text = one.text.empty() ? errno_text(one.status) : std::string(one.text);
    reported.result.version = one.version;
    reported.result.value_bytes = one.value_bytes;
    reported.result.crc = one.crc;
    reported.result.has_crc = one.status == 0;
    reported.result.user_flags = one.user_flags;
    reported.result.reached = one.reached;
    reported.result.repeated = one.repeated;
    reported.result.way = way();
    const memory& buffer = entries[frame.items[i]].buffer;
    const std::uint64_t bytes = std::min<std::uint64_t>(one.value.size(), buffer.bytes);
    if (bytes != 0) std::memcpy(reinterpret_cast<void*>(buffer.address), one.value.data(), bytes);
    reported.moved_bytes = frame.operation->head.op == opcode::batch_put && one.status == 0 ? buffer.bytes : bytes;
  }
}

std::vector<reply> client::run_batch(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                     const batch_settings& settings) {
  std::vector<reply> out(entries.size());
  const auto refuse_all = [&](int code, const std::string& text) {
    std::fill(out.begin(), out.end(), refused(code, text));
    return out;
  };
  // A path that is required is taken one by one: frames have the connection's.
  const bool is_free = options_.require == store_protocol::path::none;
  const bool able = (server_capabilities() & capability::batches) != 0 && (is_free || settings.atomic);
  if (settings.atomic && !able) return refuse_all(ENOTSUP, "the server knows no batches: it is of an earlier release");
  std::vector<batch_frame> frames;
  if (able) frames = make_frames(op, pool, entries, settings);
  if (settings.atomic) {
    const bool has_all = frames.size() == 1 && frames.front().items.size() == entries.size();
    if (!has_all)
      return refuse_all(EINVAL, "an atomic batch has whole values in host memory, of one durability, and good keys");
    if (entries.size() > store_protocol::kMaxBatchItems ||
        frames.front().operation->body.size() > store_protocol::kMaxBodyBytes)
      return refuse_all(EMSGSIZE, format("an atomic batch has at most %zu keys and %zu bytes",
                                         store_protocol::kMaxBatchItems, store_protocol::kMaxBodyBytes));
  }
  std::vector<bool> in_frame(entries.size());
  for (const batch_frame& frame : frames)
    for (const std::size_t i : frame.items) in_frame[i] = true;
  std::vector<std::size_t> alone;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!in_frame[i]) alone.push_back(i);
  run_frames(op, frames);
  for (const batch_frame& frame : frames) take_outcomes(frame, entries, out);
  if (settings.atomic) return out;
  // By themselves values may wait for room, and have any length.
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (in_frame[i] && (out[i].status == EMSGSIZE || out[i].status == ENOSPC)) alone.push_back(i);
  run_alone(op, pool, entries, alone, settings, out);
  return out;
}

// A server remembers the last 1024 numbers of a client: fewer changes are under way at a time, so that each is known when it
// comes again.
void client::run_frames(opcode op, std::span<const batch_frame> frames) {
  constexpr std::size_t kFramesAtATime = 8;
  const std::size_t most = changes(op) ? kChangesAtATime / store_protocol::kMaxBatchChanges : kFramesAtATime;
  for (std::size_t first = 0; first < frames.size(); first += most) {
    std::vector<operation_ptr> list;
    for (std::size_t i = first; i < std::min(first + most, frames.size()); ++i) list.push_back(frames[i].operation);
    start(list);
    for (const operation_ptr& one : list) wait(one);
  }
}

void client::run_alone(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                       std::span<const std::size_t> items, const batch_settings& settings, std::vector<reply>& out) {
  // Parts of short values follow each other without a pause; of long ones there is room for few.
  constexpr std::size_t kAtATime = 64, kParts = 4;
  const bool is_short =
      std::all_of(items.begin(), items.end(), [&](std::size_t i) { return entries[i].buffer.bytes <= kMaxBatchedBytes; });
  std::deque<std::pair<std::span<const std::size_t>, std::vector<operation_ptr>>> parts;
  for (std::size_t first = 0; first < items.size() || !parts.empty(); first += kAtATime) {
    if (first < items.size()) {
      auto& [part, list] = parts.emplace_back();
      part = items.subspan(first, std::min(kAtATime, items.size() - first));
      for (const std::size_t i : part) list.push_back(make_alone(op, pool, entries[i], settings.timeout_ms));
      start(list);
      if (is_short && parts.size() < kParts) continue;
    }
    const auto& [part, list] = parts.front();
    for (std::size_t i = 0; i < part.size(); ++i) {
      wait(list[i]);
      out[part[i]] = list[i]->got;
    }
    parts.pop_front();
  }
}

reply client::erase_prefix(std::uint32_t pool, std::string_view prefix, int timeout_ms) {
  if ((server_capabilities() & capability::batches) == 0)
    return refused(ENOTSUP, "the server cannot erase by prefix: it is of an earlier release");
  std::uint64_t erased = 0;
  const auto end = deadline_of(timeout_ms);
  std::string after;
  for (;;) {
    const auto one = make_plain(opcode::erase_prefix, pool, prefix, timeout_ms);
    one->deadline = end;
    if (!after.empty()) one->fields.after = after;
    reply got = run(one);
    erased += got.result.value_bytes;
    if (got.status != 0 || !got.more) {
      got.result.value_bytes = erased;
      return got;
    }
    after = got.fields.after.value_or("");
  }
}

}  // namespace pl::store_client
