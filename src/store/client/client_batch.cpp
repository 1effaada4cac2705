// SPDX-License-Identifier: Apache-2.0
// Many keys in a few frames.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>

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
// Of values that the store moves itself: enough for its DMA channel's rate, and some frames share a second's half a
// thousandth.
constexpr std::size_t kDeviceItems = 256;
constexpr std::uint64_t kDeviceFrameBytes = 16 << 20;

reply refused(int code, std::string text) {
  reply out;
  out.status = code;
  out.text = std::move(text);
  return out;
}

std::vector<reply> refuse_all(std::size_t count, int code, std::string text) {
  return std::vector<reply>(count, refused(code, std::move(text)));
}

bool changes(opcode op) { return op == opcode::batch_put || op == opcode::batch_erase; }
bool moves(opcode op) { return op == opcode::batch_put || op == opcode::batch_get; }
bool has_good_key(const batch_entry& one) { return !one.key.empty() && one.key.size() <= store_protocol::kMaxKeyBytes; }

store_protocol::batch_item item_of(const batch_entry& one) {
  store_protocol::batch_item item;
  item.key = one.key;
  item.only = one.only.value_or(store_protocol::precondition{});
  item.user_flags = one.user_flags;
  item.ttl_ms = one.ttl_ms;
  item.room = one.buffer.bytes;
  return item;
}

}  // namespace

struct client::batch_frame {
  operation_ptr operation;
  std::vector<std::size_t> items;  // of the entries
  std::string body;
  std::uint64_t answer_bytes = 0;
  std::uint64_t device_bytes = 0;
  handed_memory handed;  // its owner is null: host memory
  std::optional<store_protocol::durability> level;
  bool is_device() const noexcept { return operation->method == operation::kind::batch_device; }
};

operation_ptr client::make_alone(opcode op, std::uint32_t pool, const batch_entry& entry, std::uint64_t number,
                                 int timeout_ms) {
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
  options.number = number;
  if (op == opcode::batch_erase) return make_erase(pool, entry.key, options);
  if (entry.user_flags != 0) options.user_flags = entry.user_flags;
  if (entry.ttl_ms != 0) options.ttl_ms = entry.ttl_ms;
  return make_put(pool, entry.key, entry.buffer, options);
}

// The frames of those entries that go in some. `first`: the number of the first entry in the whole batch.
std::vector<client::batch_frame> client::make_frames(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                                     std::size_t first, const batch_settings& settings) {
  std::vector<batch_frame> out;
  const std::size_t most =
      changes(op) && !settings.atomic ? store_protocol::kMaxBatchChanges : store_protocol::kMaxBatchItems;
  const bool needs_path = options_.require != store_protocol::path::none;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const batch_entry& one = entries[i];
    const bool fits = one.buffer.bytes <= kMaxBatchedBytes || settings.atomic;
    if (one.alone || one.buffer.device || !fits || !has_good_key(one) || (needs_path && !settings.atomic)) continue;
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
    frame.items.push_back(first + i);
    frame.answer_bytes += answer;
    store_protocol::batch_item item = item_of(one);
    if (op == opcode::batch_put) item.value = {reinterpret_cast<const char*>(one.buffer.address), one.buffer.bytes};
    store_protocol::append(frame.body, item);
  }
  if (moves(op) && !settings.atomic) add_device_frames(entries, first, out);
  for (batch_frame& frame : out) {
    frame.operation = make_plain(op, pool, {}, settings.timeout_ms);
    frame.operation->body = std::move(frame.body);
    frame.operation->head.value_bytes = frame.answer_bytes;
    frame.operation->fields.level = frame.level;
    if (frame.handed.owner != nullptr) {
      frame.operation->method = operation::kind::batch_device;
      frame.operation->handed = std::move(frame.handed);
    }
    if (settings.atomic) frame.operation->head.flags |= flag::atomic;
    if (!changes(op)) continue;
    const lock_t hold(lock_);
    frame.operation->fields.request_number = {client_id_, next_sequence_};
    if (settings.numbers != nullptr)
      for (std::size_t i = 0; i < frame.items.size(); ++i) (*settings.numbers)[frame.items[i]] = next_sequence_ + i;
    next_sequence_ += settings.atomic ? 1 : frame.items.size();
  }
  return out;
}

// Frames of the values in device memory that the store moves itself, each of one handed-over memory.
void client::add_device_frames(std::span<const batch_entry> entries, std::size_t first, std::vector<batch_frame>& out) {
  if ((server_capabilities() & capability::device_batches) == 0) return;
  std::unordered_map<std::uint32_t, std::size_t> open_frames;  // frame by memory
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const batch_entry& one = entries[i];
    if (one.alone || !one.buffer.device || one.buffer.bytes > kMaxBatchedDeviceBytes || !has_good_key(one)) continue;
    handed_memory handed = hand_over(one.buffer, 1, {});
    if (handed.owner == nullptr) continue;
    const std::size_t bytes = store_protocol::kBatchItemBytes + store_protocol::kBatchOffsetBytes + one.key.size();
    const std::uint64_t offset = handed.use.offset;
    const auto is_full = [&](const batch_frame& frame) {
      return frame.items.size() == kDeviceItems || frame.level != one.level || frame.handed.owner != handed.owner ||
             frame.body.size() + bytes > store_protocol::kMaxBodyBytes ||
             frame.device_bytes + one.buffer.bytes > kDeviceFrameBytes;
    };
    const auto [found, is_new] = open_frames.try_emplace(handed.use.memory, out.size());
    if (is_new || is_full(out[found->second])) {
      found->second = out.size();
      batch_frame& begun = out.emplace_back();
      begun.level = one.level;
      begun.handed = std::move(handed);
      begun.handed.use.offset = 0;  // the items have their own
    }
    batch_frame& frame = out[found->second];
    frame.items.push_back(first + i);
    frame.device_bytes += one.buffer.bytes;
    store_protocol::batch_item item = item_of(one);
    item.offset = offset;
    store_protocol::append(frame.body, item, store_protocol::batch_memory::device);
  }
}

void client::take_outcomes(const batch_frame& frame, std::span<const batch_entry> entries, std::vector<reply>& out) {
  const reply& got = frame.operation->got;
  const auto outcomes = got.status == 0 ? store_protocol::decode_outcomes(got.body)
                                        : result<std::vector<store_protocol::batch_outcome>>(failure{got.status, got.text});
  const bool matches = outcomes && outcomes->size() == frame.items.size();
  const auto socket_way = way();
  const failure reason = !outcomes ? outcomes.error() : failure{EPROTO, "the answer to a batch has another number of items"};
  for (std::size_t i = 0; i < frame.items.size(); ++i) {
    reply& reported = out[frame.items[i]];
    if (!matches) {
      reported = refused(reason.code, reason.message);
      continue;
    }
    const store_protocol::batch_outcome& one = (*outcomes)[i];
    reported.status = one.status;
    if (one.status != 0) reported.text = one.text.empty() ? errno_text(one.status) : std::string(one.text);
    reported.result.version = one.version;
    reported.result.value_bytes = one.value_bytes;
    reported.result.crc = one.crc;
    reported.result.has_crc = one.status == 0;
    reported.result.user_flags = one.user_flags;
    reported.result.reached = one.reached;
    reported.result.repeated = one.repeated;
    const memory& buffer = entries[frame.items[i]].buffer;
    const std::uint64_t value_bytes = frame.is_device() ? one.value_bytes : one.value.size();
    const std::uint64_t bytes = one.status == 0 ? std::min<std::uint64_t>(value_bytes, buffer.bytes) : 0;
    reported.result.way = frame.is_device() ? store_protocol::path::gpu_direct : socket_way;
    if (bytes != 0 && !frame.is_device()) std::memcpy(reinterpret_cast<void*>(buffer.address), one.value.data(), bytes);
    reported.moved_bytes = frame.operation->head.op == opcode::batch_put && one.status == 0 ? buffer.bytes : bytes;
  }
}

std::vector<reply> client::run_batch(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                     const batch_settings& settings) {
  std::vector<reply> out(entries.size());
  if (settings.numbers != nullptr) settings.numbers->assign(entries.size(), 0);
  // A path that is required is taken one by one, but for the store's DMA channels: frames of bytes have the connection's.
  const bool is_free =
      options_.require == store_protocol::path::none || options_.require == store_protocol::path::gpu_direct;
  const bool able = (server_capabilities() & capability::batches) != 0 && (is_free || settings.atomic);
  if (settings.atomic && !able)
    return refuse_all(entries.size(), ENOTSUP, "the server knows no batches: it is of an earlier release");
  if (settings.atomic) return run_atomic(op, pool, entries, settings);
  std::vector<bool> is_answered(entries.size());
  if (able) run_frames(op, pool, entries, settings, is_answered, out);
  std::vector<alone_item> alone;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!is_answered[i]) alone.push_back({i});
  run_alone(op, pool, entries, alone, settings, out);
  return out;
}

std::vector<reply> client::run_atomic(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                      const batch_settings& settings) {
  std::vector<reply> out(entries.size());
  const auto frames = make_frames(op, pool, entries, 0, settings);
  const bool has_all = frames.size() == 1 && frames.front().items.size() == entries.size();
  if (!has_all)
    return refuse_all(entries.size(), EINVAL,
                      "an atomic batch has whole values in host memory, of one durability, and good keys");
  const batch_frame& frame = frames.front();
  if (entries.size() > store_protocol::kMaxBatchItems || frame.operation->body.size() > store_protocol::kMaxBodyBytes)
    return refuse_all(entries.size(), EMSGSIZE,
                      format("an atomic batch has at most %zu keys and %zu bytes", store_protocol::kMaxBatchItems,
                             store_protocol::kMaxBodyBytes));
  start(frame.operation);
  wait(frame.operation);
  take_outcomes(frame, entries, out);
  return out;
}

// Makes frames while earlier ones are under way. A server remembers the last 1024 numbers of a client: fewer changes are
// under way at a time, so that each is known when it comes again.
void client::run_frames(opcode op, std::uint32_t pool, std::span<const batch_entry> entries, const batch_settings& settings,
                        std::vector<bool>& is_answered, std::vector<reply>& out) {
  constexpr std::size_t kFramesAtATime = 8, kEntriesAtATime = 1024;
  const std::size_t most = changes(op) ? kChangesAtATime / store_protocol::kMaxBatchChanges : kFramesAtATime;
  std::deque<batch_frame> under_way;
  // By themselves values may wait for room, have any length, and go by any path.
  const auto may_do_alone = [](int status) { return status == EMSGSIZE || status == ENOSPC || status == ENOTSUP; };
  const auto wait_for_oldest = [&] {
    batch_frame frame = std::move(under_way.front());
    under_way.pop_front();
    wait(frame.operation);
    return frame;
  };
  const auto take = [&](const batch_frame& frame) {
    take_outcomes(frame, entries, out);
    const bool is_refused = frame.is_device() && frame.operation->got.status == ENOTSUP;
    for (const std::size_t i : frame.items) is_answered[i] = is_refused || !may_do_alone(out[i].status);
    if (!is_refused) return;
    // It may have been sent over a connection that broke, and have been done: its numbers are known for a while yet.
    std::vector<alone_item> again;
    for (std::size_t i = 0; i < frame.items.size(); ++i)
      again.push_back({frame.items[i], changes(op) ? frame.operation->fields.request_number->number + i : 0});
    run_alone(op, pool, entries, again, settings, out);
  };
  for (std::size_t first = 0; first < entries.size(); first += kEntriesAtATime) {
    const auto part = entries.subspan(first, std::min(kEntriesAtATime, entries.size() - first));
    for (batch_frame& frame : make_frames(op, pool, part, first, settings)) {
      std::optional<batch_frame> ended;
      if (under_way.size() == most) ended.emplace(wait_for_oldest());
      start(frame.operation);
      under_way.push_back(std::move(frame));
      if (ended) take(*ended);  // the store works on the next one meanwhile
    }
  }
  while (!under_way.empty()) take(wait_for_oldest());
}

void client::run_alone(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                       std::span<const alone_item> items, const batch_settings& settings, std::vector<reply>& out) {
  // Parts of short values follow each other without a pause; of long ones there is room for few.
  constexpr std::size_t kAtATime = 64, kParts = 4;
  const bool is_short = std::all_of(items.begin(), items.end(), [&](const alone_item& one) {
    return entries[one.entry].buffer.bytes <= kMaxBatchedBytes;
  });
  const auto begin = [&](const alone_item& one) {
    auto made = make_alone(op, pool, entries[one.entry], one.number, settings.timeout_ms);
    if (settings.numbers != nullptr && made->fields.request_number)
      (*settings.numbers)[one.entry] = made->fields.request_number->number;
    return made;
  };
  std::deque<std::pair<std::span<const alone_item>, std::vector<operation_ptr>>> parts;
  for (std::size_t first = 0; first < items.size() || !parts.empty(); first += kAtATime) {
    if (first < items.size()) {
      auto& [part, list] = parts.emplace_back();
      part = items.subspan(first, std::min(kAtATime, items.size() - first));
      for (const alone_item& one : part) list.push_back(begin(one));
      start(list);
      if (is_short && parts.size() < kParts) continue;
    }
    const auto& [part, list] = parts.front();
    for (std::size_t i = 0; i < part.size(); ++i) {
      wait(list[i]);
      out[part[i].entry] = list[i]->got;
    }
    parts.pop_front();
  }
  // Together they may be more than the connection, or its principal, may have under way. One that finds no room even so has
  // waited for it: the others need not.
  for (const alone_item& one : items) {
    reply& got = out[one.entry];
    if (got.status != ENOSPC) continue;
    got = run(begin(one));
    if (got.status == ENOSPC) return;
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
    after = got.fields->after.value_or("");
  }
}

}  // namespace pl::store_client
