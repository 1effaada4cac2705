// SPDX-License-Identifier: Apache-2.0
// Many keys in a few frames.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/text.hpp"
#include "store/client/client.hpp"
#include "store/client/slot_map.hpp"
#include "store/protocol/batch.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
namespace flag = store_protocol::flag;
namespace capability = store_protocol::capability;

// The part of a frame that is reserved for numbers and the texts of failures, beside the values.
constexpr std::uint64_t kAnswerRoom = 512u << 10;
// For values that the store moves itself: its DMA channel takes 40 us for 2 MiB, in which it works on the previous
// frame and sums the one before that. With frames of 4 MiB, the next frame came too late to keep the channel busy.
constexpr std::size_t kDeviceItems = 256;
constexpr std::uint64_t kDeviceFrameBytes = 2 << 20, kFirstShare = 4;
// Limits of frames and changes in progress. Together with the frame whose answer is being read, the changes are fewer
// than the requests that a server remembers.
constexpr std::size_t kFramesAtATime = 8, kDeviceChangesAtATime = 768;
constexpr std::size_t kFramesAhead = 4;  // of other work of the client

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
  std::vector<std::size_t> items;  // numbers of the entries
  std::string body;
  std::uint64_t answer_bytes = 0;
  std::uint64_t device_bytes = 0;
  fd_memory handed;          // without an owner: host memory
  std::uint64_t origin = 0;  // address of the first byte of that memory
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

// Builds frames from the entries that fit into frames. Each frame is sent when it is full, so that the server works on
// it while the next one is built.
class client::frame_maker {
 public:
  using sink = std::function<void(batch_frame)>;
  frame_maker(client& owner, opcode op, std::uint32_t pool, const batch_settings& settings, sink send)
      : owner_(owner),
        op_(op),
        pool_(pool),
        settings_(settings),
        send_(std::move(send)),
        needs_path_(owner.options_.require != store_protocol::path::none),
        moves_device_memory_(moves(op) && !settings.atomic &&
                             (owner.server_capabilities() & capability::device_batches) != 0) {}

  // `number` is the entry's position in the whole batch.
  void add(std::size_t number, const batch_entry& one) {
    if (one.alone || !has_good_key(one)) return;
    if (!one.buffer.device) add_host(number, one);
    else if (moves_device_memory_ && one.buffer.bytes <= kMaxBatchedDeviceBytes) add_device(number, one);
  }
  // Sends the frames that have been begun.
  void end() {
    if (host_) send(*host_);
    host_.reset();
    for (auto& [memory, frame] : device_) send(frame);
    device_.clear();
    last_ = nullptr;
  }

 private:
  void add_host(std::size_t number, const batch_entry& one) {
    if ((one.buffer.bytes > kMaxBatchedBytes || needs_path_) && !settings_.atomic) return;
    const std::size_t most =
        changes(op_) && !settings_.atomic ? store_protocol::kMaxBatchChanges : store_protocol::kMaxBatchItems;
    const std::size_t bytes =
        store_protocol::kBatchItemBytes + one.key.size() + (op_ == opcode::batch_put ? one.buffer.bytes : 0);
    const std::uint64_t answer = op_ == opcode::batch_get ? one.buffer.bytes : 0;
    const auto is_full = [&](const batch_frame& frame) {
      return frame.items.size() == most || frame.level != one.level ||
             frame.body.size() + bytes > store_protocol::kMaxBodyBytes ||
             frame.answer_bytes + answer > store_protocol::kMaxBodyBytes - kAnswerRoom;
    };
    if (host_ && is_full(*host_) && !settings_.atomic) {
      send(*host_);
      host_.reset();
    }
    if (!host_) host_.emplace().level = one.level;
    host_->items.push_back(number);
    host_->answer_bytes += answer;
    store_protocol::batch_item item = item_of(one);
    if (op_ == opcode::batch_put) item.value = {reinterpret_cast<const char*>(one.buffer.address), one.buffer.bytes};
    store_protocol::append(host_->body, item);
  }

  // Adds the entry to the frame of the handed-over memory that contains it.
  void add_device(std::size_t number, const batch_entry& one) {
    batch_frame* frame = last_;
    const bool is_near = frame != nullptr && one.buffer.bytes > 0 &&
                         frame->handed.use.covers(*one.buffer.device, {one.buffer.address, one.buffer.bytes});
    fd_memory handed;
    if (!is_near) {
      handed = owner_.hand_over(one.buffer, 1, {});
      if (handed.owner == nullptr) return;
      const auto found = device_.find(handed.use.memory);
      frame = found == device_.end() ? nullptr : &found->second;
      if (frame != nullptr && frame->handed.owner != handed.owner) frame = full(*frame);
    }
    const std::size_t bytes = store_protocol::kBatchItemBytes + store_protocol::kBatchOffsetBytes + one.key.size();
    // The first frame is short, so that the copies start while the next frames are built.
    const std::uint64_t share = has_sent_device_ ? 1 : kFirstShare;
    const auto is_full = [&] {
      return frame->items.size() >= kDeviceItems / share || frame->level != one.level ||
             frame->body.size() + bytes > store_protocol::kMaxBodyBytes ||
             frame->device_bytes + one.buffer.bytes > kDeviceFrameBytes / share;
    };
    if (frame != nullptr && is_full()) {
      if (is_near) handed = owner_.hand_over(one.buffer, 1, {});  // each frame has a use of its own
      frame = full(*frame);
      if (handed.owner == nullptr) return;
    }
    if (frame == nullptr) frame = begin_device(one, std::move(handed));
    last_ = frame;
    frame->items.push_back(number);
    frame->device_bytes += one.buffer.bytes;
    store_protocol::batch_item item = item_of(one);
    item.offset = one.buffer.address - frame->origin;
    store_protocol::append(frame->body, item, store_protocol::batch_memory::device);
  }
  batch_frame* begin_device(const batch_entry& one, fd_memory handed) {
    if (const auto found = device_.find(handed.use.memory); found != device_.end()) full(found->second);
    batch_frame& begun = device_[handed.use.memory];
    begun.level = one.level;
    begun.origin = one.buffer.address - handed.use.offset;
    begun.handed = std::move(handed);
    begun.handed.use.offset = 0;  // the items have their own offsets
    begun.items.reserve(kDeviceItems);
    begun.body.reserve(kDeviceItems *
                       (store_protocol::kBatchItemBytes + store_protocol::kBatchOffsetBytes + one.key.size() + 1));
    return &begun;
  }
  // Returns null: the frame is gone.
  batch_frame* full(batch_frame& frame) {
    last_ = nullptr;
    has_sent_device_ = true;
    const std::uint32_t memory = frame.handed.use.memory;
    send(frame);
    device_.erase(memory);
    return nullptr;
  }

  void send(batch_frame& frame) {
    frame.operation = owner_.make_plain(op_, pool_, {}, settings_.timeout_ms);
    operation& made = *frame.operation;
    made.body = std::move(frame.body);
    made.head.value_bytes = frame.answer_bytes;
    made.fields.level = frame.level;
    if (frame.handed.owner != nullptr) {
      made.method = operation::kind::batch_device;
      made.handed = std::move(frame.handed);
    }
    if (settings_.atomic) made.head.flags |= flag::atomic;
    if (changes(op_)) {
      const lock_t hold(owner_.lock_);
      std::uint64_t& next = owner_.next_sequence_;
      made.fields.request_number = {owner_.client_id_, next};
      if (settings_.numbers != nullptr)
        for (std::size_t i = 0; i < frame.items.size(); ++i) (*settings_.numbers)[frame.items[i]] = next + i;
      next += settings_.atomic ? 1 : frame.items.size();
    }
    send_(std::move(frame));
  }

  client& owner_;
  const opcode op_;
  const std::uint32_t pool_;
  const batch_settings& settings_;
  const sink send_;
  const bool needs_path_, moves_device_memory_;
  std::optional<batch_frame> host_;
  std::unordered_map<std::uint32_t, batch_frame> device_;  // by number of the memory
  batch_frame* last_ = nullptr;                            // one of these
  bool has_sent_device_ = false;
};

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
  std::vector<reply> out;
  if (settings.numbers != nullptr) settings.numbers->assign(entries.size(), 0);
  // If a path is required, entries go one by one, except for the store's DMA channels: frames of bytes use the
  // connection's path.
  const bool is_free =
      options_.require == store_protocol::path::none || options_.require == store_protocol::path::gpu_direct;
  const bool able = (server_capabilities() & capability::batches) != 0 && (is_free || settings.atomic);
  if (settings.atomic && !able)
    return refuse_all(entries.size(), ENOTSUP, "the server knows no batches: it is of an earlier release");
  if (settings.atomic) return run_atomic(op, pool, entries, settings);
  std::vector<bool> is_answered;
  if (able) run_frames(op, pool, entries, settings, is_answered, out);
  out.resize(entries.size());
  is_answered.resize(entries.size());
  std::vector<alone_item> alone;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!is_answered[i]) alone.push_back({i});
  run_alone(op, pool, entries, alone, settings, out);
  return out;
}

std::vector<reply> client::run_atomic(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                      const batch_settings& settings) {
  std::vector<reply> out(entries.size());
  std::vector<batch_frame> frames;
  frame_maker maker(*this, op, pool, settings, [&](batch_frame frame) { frames.push_back(std::move(frame)); });
  for (std::size_t i = 0; i < entries.size(); ++i) maker.add(i, entries[i]);
  maker.end();
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

// Builds frames while earlier ones are in progress. A server remembers the last 1024 requests of a client, so fewer
// changes are in progress at a time: each is known if it is repeated. `out` and `is_answered` are sized here, once the
// server has work, because allocating memory for thousands of answers takes a while.
void client::run_frames(opcode op, std::uint32_t pool, std::span<const batch_entry> entries, const batch_settings& settings,
                        std::vector<bool>& is_answered, std::vector<reply>& out) {
  std::deque<batch_frame> in_flight;
  std::size_t items_in_flight = 0;
  // A value that goes alone may wait for room, have any length, and take any path.
  const auto may_do_alone = [](int status) { return status == EMSGSIZE || status == ENOSPC || status == ENOTSUP; };
  const auto wait_for_oldest = [&] {
    batch_frame frame = std::move(in_flight.front());
    in_flight.pop_front();
    items_in_flight -= frame.items.size();
    wait(frame.operation);
    return frame;
  };
  const auto make_room_for_answers = [&] {
    out.resize(entries.size());
    is_answered.resize(entries.size());
  };
  const auto take = [&](const batch_frame& frame) {
    make_room_for_answers();
    take_outcomes(frame, entries, out);
    const bool is_refused = frame.is_device() && frame.operation->got.status == ENOTSUP;
    for (const std::size_t i : frame.items) is_answered[i] = is_refused || !may_do_alone(out[i].status);
    if (!is_refused) return;
    // They may have been sent over a connection that broke, and applied; the server still knows their numbers.
    std::vector<alone_item> again;
    for (std::size_t i = 0; i < frame.items.size(); ++i)
      again.push_back({frame.items[i], changes(op) ? frame.operation->fields.request_number->number + i : 0});
    run_alone(op, pool, entries, again, settings, out);
  };
  const auto has_room = [&](const batch_frame& next) {
    const std::size_t most = next.is_device() ? kDeviceChangesAtATime : kChangesAtATime;
    return in_flight.size() < kFramesAtATime && (!changes(op) || items_in_flight + next.items.size() <= most);
  };
  frame_maker maker(*this, op, pool, settings, [&](batch_frame frame) {
    std::deque<batch_frame> ended;
    while (!in_flight.empty() && !has_room(frame)) ended.push_back(wait_for_oldest());
    start(frame.operation);
    items_in_flight += frame.items.size();
    in_flight.push_back(std::move(frame));
    if (in_flight.size() == kFramesAhead) make_room_for_answers();
    for (const batch_frame& one : ended) take(one);  // the store works on the next frame meanwhile
  });
  for (std::size_t i = 0; i < entries.size(); ++i) maker.add(i, entries[i]);
  maker.end();
  while (!in_flight.empty()) take(wait_for_oldest());
}

void client::run_alone(opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                       std::span<const alone_item> items, const batch_settings& settings, std::vector<reply>& out) {
  // Short values follow each other without a pause; of long ones, only a few find room at a time.
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
  // Together the values may exceed what the connection or its principal may have in progress. A value that finds no
  // room has waited for it, so the others need not wait too.
  for (const alone_item& one : items) {
    reply& got = out[one.entry];
    if (got.status != ENOSPC) continue;
    got = run(begin(one));
    if (got.status == ENOSPC) return;
  }
}

reply client::erase_prefix(std::uint32_t pool, std::string_view prefix, int timeout_ms,
                           std::chrono::milliseconds page_time) {
  if ((server_capabilities() & capability::batches) == 0)
    return refused(ENOTSUP, "the server cannot erase by prefix: it is of an earlier release");
  std::uint64_t erased = 0;
  std::optional<unit_list> listed;
  const auto end = deadline_of(timeout_ms);
  std::string after;
  for (;;) {
    const auto one = make_plain(opcode::erase_prefix, pool, prefix, timeout_ms);
    one->deadline = std::min(end, clock::now() + page_time);
    if (!after.empty()) one->fields.after = after;
    reply got = run(one);
    erased += got.result.value_bytes;
    if (got.status == 0 && got.fields->listed)
      if (const auto units = unit_list_in(*got.fields->listed)) listed = listed ? *listed & *units : *units;
    if (got.status != 0 || !got.more) {
      got.result.value_bytes = erased;
      if (got.status == 0 && listed) {
        store_protocol::tail said;
        said.listed = to_bytes(*listed);
        got.fields = std::move(said);
      }
      return got;
    }
    after = got.fields->after.value_or("");
  }
}

}  // namespace pl::store_client
