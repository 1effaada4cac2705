// SPDX-License-Identifier: Apache-2.0
#include "messaging/rma.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/text.hpp"
#include "base/two_views.hpp"

namespace pl::messaging {
namespace {

int read_operation(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  const auto done = op.context->buffers.read(op.range, offset, destination, bytes, op.context->touch_of(op.range));
  if (!done) op.message = done.error().message;
  return done.code();
}

// The word first, then the data.
int read_with_word(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) {
  const auto& word = static_cast<operation*>(outgoing.owner)->held;
  const std::size_t of_word = offset < word.size() ? std::min(bytes, word.size() - offset) : 0;
  if (of_word != 0) std::memcpy(destination, word.data() + offset, of_word);
  if (of_word == bytes) return 0;
  return read_operation(outgoing, offset + of_word - word.size(), static_cast<std::byte*>(destination) + of_word,
                        bytes - of_word);
}

constexpr const char* kRefused = "the target refuses: its window has ended, or the range leaves it";

}  // namespace

// ---- Windows

result<window::key_t> remote_access::expose(const buffer& data) {
  auto range = context_.buffers.inspect_lasting(data);
  if (!range) return std::move(range).error();
  const auto id = next_window_++;
  windows_[id] = *range;
  if (!range->is_device && range->bytes != 0 && context_.options.use_cma)
    direct_.own().publish(id, {window_place::kind::owned, -1, 0, range->address, range->bytes});
  if (range->is_device && context_.size > 1) direct_.publish_gpu(id, *range);
  return window::key_t{context_.rank, id, range->bytes};
}

result<std::pair<window::key_t, std::byte*>> remote_access::allocate(std::size_t bytes) {
  auto pages = shared_pages::make(bytes);
  if (!pages) return std::move(pages).error();
  const auto id = next_window_++;
  std::byte* const data = pages->data();
  windows_[id].set_host(copy::address_of(data), bytes);
  direct_.own().publish(id, pages->place());
  pages_[id] = *std::move(pages);
  return std::pair{window::key_t{context_.rank, id, bytes}, data};
}

void remote_access::end_window(std::uint32_t id) {
  direct_.own().end(id);
  windows_.erase(id);
  if (auto held = pages_.extract(id)) ending_.insert(std::move(held));
}

result<memory> remote_access::window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const {
  const auto found = windows_.find(static_cast<std::uint32_t>(id));
  if (found == windows_.end() || offset > found->second.bytes || bytes > found->second.bytes - offset)
    return failure{EINVAL, kRefused};
  return memory{found->second.address + offset, bytes, found->second.is_device, {}};
}

std::optional<failure> remote_access::refuses_window(const window::key_t& key, std::uint64_t offset,
                                                     std::uint64_t bytes) const {
  if (auto refused = context_.refuses_peer(key.rank)) return refused;
  if (offset <= key.bytes && bytes <= key.bytes - offset) return std::nullopt;
  return failure{EINVAL, format("%llu bytes at offset %llu leave a window of %llu", static_cast<unsigned long long>(bytes),
                                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(key.bytes))};
}

bool remote_access::move_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data, bool is_put) {
  const bool is_peer = key.rank >= 0 && key.rank < context_.size && key.rank != context_.rank;
  if (!is_peer || data.bytes > kMaxAtOnce || offset > key.bytes || data.bytes > key.bytes - offset) return false;
  if (context_.peer(key.rank).is_dead || !context_.buffers.is_known_host(data)) return false;
  memory range;
  range.set_host(data.address, data.bytes);
  const auto done = is_put ? direct_.put(key, offset, range) : direct_.get(key, offset, range);
  if (!done || !*done) return false;
  ++context_.counts.one_sided;
  return true;
}

// ---- Put

operation& remote_access::put(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word* word) {
  constexpr auto kKind = operation_kind::put;
  if (auto refused = refuses_window(key, offset, data.bytes))
    return context_.failed(kKind, refused->code, std::move(refused->message));
  auto range = context_.buffers.inspect(data);
  if (!range) return context_.failed(kKind, range.code(), range.error().message);
  auto& op = context_.operations.take(kKind);
  op.peer = key.rank;
  op.range = *range;
  op.tag = offset;
  op.bytes = range->bytes;
  op.held.clear();
  ++context_.peer(key.rank).puts;
  if (key.rank == context_.rank) {
    const auto target = window_part(key.id, offset, data.bytes);
    const auto done = target ? context_.buffers.move(*target, op.range, op.bytes) : status(target.error());
    context_.end(op, done.code(), done ? "" : done.error().message);
    return op;
  }
  if (auto done = direct_.put(key, offset, op.range)) {
    ++context_.counts.one_sided;
    context_.end(op, done->code(), *done ? "" : done->error().message);
    return op;
  }
  op.out.head.peer_op = key.id;
  const std::size_t limit = channel_.eager_limit(op.range, context_.peer(key.rank));
  if (op.bytes > limit) {
    rendezvous_.send_rts(op, frame_kind::put_rts);
    return op;
  }
  op.out.head.tag = offset;
  op.out.head.bytes = op.bytes;
  if (word != nullptr && op.bytes + sizeof(signal_body) <= limit) {
    const signal_body body{word->key.id, word->offset, word->value, static_cast<std::uint64_t>(word->kind)};
    op.held.resize(sizeof body);
    std::memcpy(op.held.data(), &body, sizeof body);
    channel_.send_operation(op, frame_kind::put_signal, sizeof body + op.bytes, &read_with_word);
    return op;
  }
  channel_.send_operation(op, frame_kind::put_eager, op.bytes, &read_operation);
  return op;
}

void remote_access::on_put(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  const bool is_word = head.kind == frame_kind::put_eager && head.code == kBehindPut;
  if (is_word) {
    if (!stops_word(source, head, payload, bytes)) answer_put(source, head, write_short(head, payload, bytes, outcome));
    return;
  }
  source.last_deposit = 0;
  if (head.kind == frame_kind::put_signal)
    return answer_put(source, head, source.put_outcome = write_with_word(head, payload, bytes, outcome));
  if (head.kind == frame_kind::put_eager)
    return answer_put(source, head, source.put_outcome = write_short(head, payload, bytes, outcome));
  const auto range = window_part(head.peer_op, head.tag, head.bytes);
  rts_body rts;
  source.put_outcome = !range ? EINVAL : bytes != sizeof rts ? EPROTO : 0;
  if (source.put_outcome != 0) return answer_put(source, head, source.put_outcome);
  std::memcpy(&rts, payload, sizeof rts);
  auto& deposit = context_.operations.take(operation_kind::deposit);
  deposit.range = *range;
  deposit.is_released = true;
  deposit.window = static_cast<std::uint32_t>(head.peer_op);
  source.last_deposit = deposit.id();
  rendezvous_.start_receive(deposit, source.rank, rts, head.bytes, head.op, channel_.take_arriving());
}

void remote_access::answer_put(const peer_state& source, const frame& head, int code) {
  channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = code, .peer_op = head.op});
}

int remote_access::write_short(const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  const auto range = window_part(head.peer_op, head.tag, head.bytes);
  if (!range) return EINVAL;
  if (outcome != 0 || bytes != head.bytes) return EIO;
  return store(*range, payload, bytes);
}

int remote_access::store(const memory& range, const void* data, std::size_t bytes) {
  before_store_in_view(range.address);  // a kernel may be waiting for this word
  return bytes == 0 ? 0 : context_.buffers.write(range, 0, data, bytes, context_.touch_of(range)).code();
}

int remote_access::write_with_word(const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  signal_body body;
  if (bytes < sizeof body) return EPROTO;
  std::memcpy(&body, payload, sizeof body);
  const bool is_short = body.kind == static_cast<std::uint64_t>(signal_kind::set_32);
  // Checked before the bytes are written: a put whose word is rejected writes nothing.
  const auto word = window_part(body.window, body.offset, is_short ? sizeof(std::uint32_t) : sizeof(std::uint64_t));
  if (!word) return EINVAL;
  if (const int code = write_short(head, payload + sizeof body, bytes - sizeof body, outcome); code != 0) return code;
  if (!is_short) {
    const auto change = body.kind == static_cast<std::uint64_t>(signal_kind::set) ? atomic_op::swap : atomic_op::add;
    return apply(*word, {change, body.value, 0}).code();
  }
  const auto value = static_cast<std::uint32_t>(body.value);
  return store(*word, &value, sizeof value);
}

// ---- Get

operation& remote_access::get(const window::key_t& key, std::uint64_t offset, const buffer& data) {
  constexpr auto kKind = operation_kind::get;
  if (auto refused = refuses_window(key, offset, data.bytes))
    return context_.failed(kKind, refused->code, std::move(refused->message));
  auto range = context_.buffers.inspect(data);
  if (!range) return context_.failed(kKind, range.code(), range.error().message);
  auto& op = context_.operations.take(kKind);
  op.peer = key.rank;
  op.range = *range;
  op.bytes = range->bytes;
  op.info = {key.rank, 0, range->bytes};
  if (key.rank == context_.rank) {
    const auto source = window_part(key.id, offset, data.bytes);
    const auto done = source ? context_.buffers.move(op.range, *source, op.bytes) : status(source.error());
    context_.end(op, done.code(), done ? "" : done.error().message);
    return op;
  }
  if (auto done = direct_.get(key, offset, op.range)) {
    ++context_.counts.one_sided;
    context_.end(op, done->code(), *done ? "" : done->error().message);
    return op;
  }
  channel_.send_control(key.rank,
                        {.kind = frame_kind::get, .tag = offset, .bytes = op.bytes, .op = op.id(), .peer_op = key.id});
  return op;
}

void remote_access::on_get(peer_state& source, const frame& head) {
  const auto range = window_part(head.peer_op, head.tag, head.bytes);
  if (!range) return channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = EINVAL, .peer_op = head.op});
  auto& reply = context_.operations.take(operation_kind::reply);
  reply.peer = source.rank;
  reply.range = *range;
  reply.bytes = range->bytes;
  reply.is_released = true;
  reply.window = static_cast<std::uint32_t>(head.peer_op);
  reply.out.head.peer_op = head.op;
  if (reply.bytes > channel_.eager_limit(reply.range, source)) return rendezvous_.send_rts(reply, frame_kind::reply_rts);
  reply.out.head.bytes = reply.bytes;
  channel_.send_operation(reply, frame_kind::reply_eager, reply.bytes, &read_operation);
}

void remote_access::on_reply(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes,
                             int outcome) {
  operation* const asked = context_.operations.find(head.peer_op);
  const bool is_wanted = asked != nullptr && asked->kind == operation_kind::get && !asked->has_ended() &&
                         asked->peer == source.rank && head.bytes == asked->range.bytes;
  if (!is_wanted) {
    if (head.kind == frame_kind::reply_rts)
      channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = head.op});
    return;
  }
  if (head.kind == frame_kind::reply_eager) return context_.deliver(*asked, payload, bytes, outcome);
  rts_body rts;
  if (bytes != sizeof rts) return context_.end(*asked, EPROTO);
  std::memcpy(&rts, payload, sizeof rts);
  rendezvous_.start_receive(*asked, source.rank, rts, head.bytes, head.op, channel_.take_arriving());
}

// ---- Atomics: of the CPU on host memory; on GPU memory the target's messenger executes them, one after another.

std::optional<failure> remote_access::refuses_word(const window::key_t& key, std::uint64_t offset, std::size_t bytes) const {
  if (auto refused = refuses_window(key, offset, bytes)) return refused;
  if (offset % bytes == 0) return std::nullopt;
  return failure{EINVAL, "an atomic operation or a signal needs an offset of whole words"};
}

operation& remote_access::atomic(const window::key_t& key, std::uint64_t offset, const atomic_request& request,
                                 std::uint64_t* before) {
  constexpr auto kKind = operation_kind::atomic;
  if (auto refused = refuses_word(key, offset)) return context_.failed(kKind, refused->code, std::move(refused->message));
  auto& made = context_.operations.take(kKind);
  made.peer = key.rank;
  made.before = before;
  start_atomic(made, key, offset, request);
  return made;
}

void remote_access::start_atomic(operation& made, const window::key_t& key, std::uint64_t offset,
                                 const atomic_request& request, std::int32_t code) {
  if (key.rank == context_.rank) {
    const auto word = window_part(key.id, offset, sizeof(std::uint64_t));
    const auto old = word ? apply(*word, request) : result<std::uint64_t>(word.error());
    if (old && made.before != nullptr) *made.before = *old;
    return context_.end(made, old.code(), old ? "" : old.error().message);
  }
  auto old = code == 0 ? direct_.atomic(key, offset, request) : std::nullopt;
  if (old) {
    ++context_.counts.one_sided;
    if (*old && made.before != nullptr) *made.before = **old;
    return context_.end(made, old->code(), *old ? "" : old->error().message);
  }
  channel_.send_control(key.rank,
                        {.kind = frame_kind::atomic, .code = code, .tag = offset, .op = made.id(), .peer_op = key.id},
                        &request, sizeof request);
}

// ---- Put with a signal: one operation if both fit into one frame. Otherwise the put, then an operation on the word, which
// is the one that the caller waits for. The frame of the word follows that of the put, and waits at the target for its
// bytes.

operation& remote_access::put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data,
                                     const signal_word& word) {
  constexpr auto kKind = operation_kind::put;
  const std::size_t word_bytes = word.kind == signal_kind::set_32 ? sizeof(std::uint32_t) : sizeof(std::uint64_t);
  if (auto refused = refuses_word(word.key, word.offset, word_bytes))
    return context_.failed(kKind, refused->code, "the signal: " + refused->message);
  if (word.key.rank != key.rank)
    return context_.failed(kKind, EINVAL,
                           format("the signal is at rank %d, and the put goes to rank %d: give a window of one process",
                                  word.key.rank, key.rank));
  auto& first = put(key, offset, data, &word);
  if ((first.has_ended() && first.code != 0) || !first.held.empty()) return first;
  const bool is_there = first.has_ended();
  if (is_there) context_.release(first);
  auto& made = context_.operations.take(operation_kind::atomic);
  made.peer = key.rank;
  if (is_there) return raise(made, word), made;
  made.leader = first.id();
  first.follower = made.id();
  raise(made, word, kBehindPut);
  return made;
}

void remote_access::raise(operation& made, const signal_word& word, std::int32_t code) {
  if (word.kind == signal_kind::set_32) return set_short_word(made, word, code);
  if (word.kind == signal_kind::set && code == 0)
    if (auto done = direct_.set_gpu_word(word.key, word.offset, word.value)) {
      ++context_.counts.one_sided;
      return context_.end(made, done->code(), *done ? "" : done->error().message);
    }
  const auto change = word.kind == signal_kind::set ? atomic_op::swap : atomic_op::add;
  start_atomic(made, word.key, word.offset, {change, word.value, 0}, code);
}

void remote_access::set_short_word(operation& made, const signal_word& word, std::int32_t code) {
  auto value = static_cast<std::uint32_t>(word.value);
  memory source;
  source.set_host(copy::address_of(&value), sizeof value);
  const auto end = [&](const status& done) { context_.end(made, done.code(), done ? "" : done.error().message); };
  if (word.key.rank == context_.rank) {
    const auto target = window_part(word.key.id, word.offset, sizeof value);
    return end(target ? context_.buffers.move(*target, source, sizeof value) : status(target.error()));
  }
  if (auto done = code == 0 ? direct_.put(word.key, word.offset, source) : std::nullopt)
    return ++context_.counts.one_sided, end(*done);
  channel_.send_control(word.key.rank,
                        {.kind = frame_kind::put_eager,
                         .code = code,
                         .tag = word.offset,
                         .bytes = sizeof value,
                         .op = made.id(),
                         .peer_op = word.key.id},
                        &value, sizeof value);
}

bool remote_access::stops_word(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes) {
  operation* const before = context_.operations.find(source.last_deposit);
  if (before == nullptr || before->has_ended()) {
    if (source.put_outcome != 0) answer_put(source, head, source.put_outcome);
    return source.put_outcome != 0;
  }
  if (before->follower != 0 || bytes > sizeof(atomic_request)) return answer_put(source, head, EPROTO), true;
  auto& word = context_.operations.take(operation_kind::word);
  word.peer = source.rank;
  word.is_released = true;
  word.held.resize(sizeof head + bytes);
  std::memcpy(word.held.data(), &head, sizeof head);
  std::memcpy(word.held.data() + sizeof head, payload, bytes);
  word.leader = before->id();
  before->follower = word.id();
  return true;
}

void remote_access::raise_due_words() {
  for (const auto id : std::exchange(context_.due_words, {})) {
    operation* const due = context_.operations.find(id);
    if (due == nullptr || due->has_ended()) continue;
    frame head;
    std::memcpy(&head, due->held.data(), sizeof head);
    const std::byte* const payload = due->held.data() + sizeof head;
    const std::size_t bytes = due->held.size() - sizeof head;
    const auto& source = context_.peer(due->peer);
    if (head.kind == frame_kind::atomic) change_word(source, head, payload);
    else answer_put(source, head, write_short(head, payload, bytes, 0));
    context_.end(*due, 0);
  }
}

result<std::uint64_t> remote_access::read_word(std::uint32_t id, std::uint64_t offset) {
  if (offset % sizeof(std::uint64_t) != 0) return failure{EINVAL, "a signal needs an offset of whole words"};
  const auto range = window_part(id, offset, sizeof(std::uint64_t));
  if (!range) return failure{EINVAL, "no such word: the window has ended, or the offset leaves it"};
  if (!range->is_device && range->address % sizeof(std::uint64_t) == 0)
    return std::atomic_ref(*static_cast<std::uint64_t*>(copy::host_pointer(range->address))).load(std::memory_order_acquire);
  std::uint64_t out = 0;
  if (auto done = context_.buffers.read(*range, 0, &out, sizeof out, touch::cpu_only); !done) return std::move(done).error();
  return out;
}

void remote_access::on_atomic(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes) {
  if (bytes != sizeof(atomic_request)) return;
  if (head.code != kBehindPut || !stops_word(source, head, payload, bytes)) change_word(source, head, payload);
}

void remote_access::change_word(const peer_state& source, const frame& head, const std::byte* payload) {
  atomic_request request;
  std::memcpy(&request, payload, sizeof request);
  const auto word = window_part(head.peer_op, head.tag, sizeof(std::uint64_t));
  const auto old = word ? apply(*word, request) : result<std::uint64_t>(word.error());
  if (!old) return answer_put(source, head, old.code());
  channel_.send_control(source.rank, {.kind = frame_kind::atomic_reply, .tag = *old, .peer_op = head.op});
}

void remote_access::on_atomic_reply(const frame& head) {
  operation* const asked = context_.operations.find(head.peer_op);
  if (asked == nullptr || asked->has_ended()) return;
  if (asked->before != nullptr) *asked->before = head.tag;
  context_.end(*asked, head.code);
}

result<std::uint64_t> remote_access::apply(const memory& range, const atomic_request& request) {
  if (!range.is_device && range.address % sizeof(std::uint64_t) == 0)
    return apply_atomic(copy::host_pointer(range.address), request);
  std::uint64_t before = 0;
  if (auto done = context_.buffers.read(range, 0, &before, sizeof before, context_.touch_of(range)); !done)
    return std::move(done).error();
  std::uint64_t now = before;
  apply_atomic(&now, request);
  if (now != before)
    if (auto done = context_.buffers.write(range, 0, &now, sizeof now, context_.touch_of(range)); !done)
      return std::move(done).error();
  return before;
}

}  // namespace pl::messaging
