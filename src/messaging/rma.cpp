// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows. The target's side is part of its progress; data takes the same ways as messages, with a
// window's bytes in place of a receive, and without matching.
#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {
namespace {

int read_operation(packet& from, std::size_t offset, void* to, std::size_t bytes) {
  auto& what = *static_cast<operation*>(from.owner);
  const auto done = what.home->memory_.read(what.at, offset, to, bytes, what.home->touch_of(what.at));
  if (!done) what.message = done.error().message;
  return done.code();
}

std::uint64_t after(const atomic_request& what, std::uint64_t before) {
  switch (what.what) {
    case atomic_op::add:
      return before + what.operand;
    case atomic_op::bit_and:
      return before & what.operand;
    case atomic_op::bit_or:
      return before | what.operand;
    case atomic_op::bit_xor:
      return before ^ what.operand;
    case atomic_op::swap:
      return what.operand;
    case atomic_op::compare_swap:
      return before == what.compare ? what.operand : before;
  }
  return before;
}

constexpr const char* kRefused = "the target refuses: its window has ended, or the range leaves it";

}  // namespace

// ---- Windows

result<window::key_t> engine::expose(const buffer& what) {
  auto at = memory_.look(what);
  if (!at) return std::move(at).error();
  const auto id = next_window_++;
  windows_[id] = *at;
  return window::key_t{rank_, id, at->bytes};
}

void engine::end_window(std::uint32_t id) { windows_.erase(id); }

result<memory> engine::window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const {
  const auto found = windows_.find(static_cast<std::uint32_t>(id));
  if (found == windows_.end() || offset > found->second.bytes || bytes > found->second.bytes - offset)
    return failure{EINVAL, kRefused};
  return memory{found->second.address + offset, bytes, found->second.is_device, {}};
}

std::optional<failure> engine::refuses_window(const window::key_t& of, std::uint64_t offset, std::uint64_t bytes) const {
  if (auto refused = refuses_peer(of.rank)) return refused;
  if (offset <= of.bytes && bytes <= of.bytes - offset) return std::nullopt;
  return failure{EINVAL, format("%llu bytes at offset %llu leave a window of %llu", static_cast<unsigned long long>(bytes),
                                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(of.bytes))};
}

// ---- Put

operation& engine::put(const window::key_t& to, std::uint64_t offset, const buffer& from) {
  constexpr auto kKind = operation_kind::put;
  if (auto refused = refuses_window(to, offset, from.bytes))
    return failed(kKind, refused->code, std::move(refused->message));
  auto at = memory_.look(from);
  if (!at) return failed(kKind, at.code(), at.error().message);
  auto& what = operations_.take(kKind);
  what.peer = to.rank;
  what.at = *at;
  what.tag = offset;
  what.bytes = at->bytes;
  ++peer(to.rank).puts;
  if (to.rank == rank_) {
    const auto target = window_part(to.id, offset, from.bytes);
    const auto done = target ? memory_.move(*target, what.at, what.bytes) : status(target.error());
    end(what, done.code(), done ? "" : done.error().message);
    return what;
  }
  what.out.head.peer_op = to.id;
  if (what.bytes > eager_limit(what.at, peer(to.rank))) {
    announce(what, frame_kind::put_announce);
    return what;
  }
  what.out.head.tag = offset;
  what.out.head.bytes = what.bytes;
  depart_operation(what, frame_kind::put_eager, what.bytes, &read_operation);
  return what;
}

void engine::on_put(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  const auto answer = [&](int code) { control(from.rank, {.kind = frame_kind::finish, .code = code, .peer_op = head.op}); };
  const auto at = window_part(head.peer_op, head.tag, head.bytes);
  if (!at) return answer(EINVAL);
  if (head.kind == frame_kind::put_eager) {
    if (outcome != 0 || bytes != head.bytes) return answer(EIO);
    const auto done = bytes == 0 ? status{} : memory_.write(*at, 0, payload, bytes, touch_of(*at));
    return answer(done.code());
  }
  bulk_offer offer;
  if (bytes != sizeof offer) return answer(EPROTO);
  std::memcpy(&offer, payload, sizeof offer);
  auto& deposit = operations_.take(operation_kind::deposit);
  deposit.at = *at;
  deposit.is_released = true;
  deposit.window = static_cast<std::uint32_t>(head.peer_op);
  receive_announced(deposit, from.rank, offer, head.bytes, head.op, std::move(arriving_));
}

// ---- Get

operation& engine::get(const window::key_t& from, std::uint64_t offset, const buffer& to) {
  constexpr auto kKind = operation_kind::get;
  if (auto refused = refuses_window(from, offset, to.bytes))
    return failed(kKind, refused->code, std::move(refused->message));
  auto at = memory_.look(to);
  if (!at) return failed(kKind, at.code(), at.error().message);
  auto& what = operations_.take(kKind);
  what.peer = from.rank;
  what.at = *at;
  what.bytes = at->bytes;
  what.info = {from.rank, 0, at->bytes};
  if (from.rank == rank_) {
    const auto source = window_part(from.id, offset, to.bytes);
    const auto done = source ? memory_.move(what.at, *source, what.bytes) : status(source.error());
    end(what, done.code(), done ? "" : done.error().message);
    return what;
  }
  control(from.rank, {.kind = frame_kind::get, .tag = offset, .bytes = what.bytes, .op = what.id(), .peer_op = from.id});
  return what;
}

void engine::on_get(peer_state& from, const frame& head) {
  const auto at = window_part(head.peer_op, head.tag, head.bytes);
  if (!at) return control(from.rank, {.kind = frame_kind::finish, .code = EINVAL, .peer_op = head.op});
  auto& reply = operations_.take(operation_kind::reply);
  reply.peer = from.rank;
  reply.at = *at;
  reply.bytes = at->bytes;
  reply.is_released = true;
  reply.window = static_cast<std::uint32_t>(head.peer_op);
  reply.out.head.peer_op = head.op;
  if (reply.bytes > eager_limit(reply.at, from)) return announce(reply, frame_kind::reply_announce);
  reply.out.head.bytes = reply.bytes;
  depart_operation(reply, frame_kind::reply_eager, reply.bytes, &read_operation);
}

void engine::on_reply(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  operation* const asked = operations_.find(head.peer_op);
  const bool is_wanted = asked != nullptr && asked->kind == operation_kind::get && !asked->has_ended() &&
                         asked->peer == from.rank && head.bytes == asked->at.bytes;
  if (!is_wanted) {
    if (head.kind == frame_kind::reply_announce)
      control(from.rank, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = head.op});
    return;
  }
  if (head.kind == frame_kind::reply_eager) return deliver(*asked, payload, bytes, outcome);
  bulk_offer offer;
  if (bytes != sizeof offer) return end(*asked, EPROTO);
  std::memcpy(&offer, payload, sizeof offer);
  receive_announced(*asked, from.rank, offer, head.bytes, head.op, std::move(arriving_));
}

// ---- Atomics: executed by the target's messenger, one after another.

operation& engine::atomic(const window::key_t& at, std::uint64_t offset, const atomic_request& what, std::uint64_t* before) {
  constexpr auto kKind = operation_kind::atomic;
  if (auto refused = refuses_window(at, offset, sizeof(std::uint64_t)))
    return failed(kKind, refused->code, std::move(refused->message));
  if (offset % sizeof(std::uint64_t) != 0)
    return failed(kKind, EINVAL, "an atomic operation needs an offset of whole words");
  auto& made = operations_.take(kKind);
  made.peer = at.rank;
  made.before = before;
  if (at.rank == rank_) {
    const auto word = window_part(at.id, offset, sizeof(std::uint64_t));
    const auto old = word ? apply(*word, what) : result<std::uint64_t>(word.error());
    if (old && before != nullptr) *before = *old;
    end(made, old.code(), old ? "" : old.error().message);
    return made;
  }
  control(at.rank, {.kind = frame_kind::atomic, .tag = offset, .op = made.id(), .peer_op = at.id}, &what, sizeof what);
  return made;
}

void engine::on_atomic(peer_state& from, const frame& head, const atomic_request& what) {
  const auto word = window_part(head.peer_op, head.tag, sizeof(std::uint64_t));
  const auto old = word ? apply(*word, what) : result<std::uint64_t>(word.error());
  if (!old) return control(from.rank, {.kind = frame_kind::finish, .code = old.code(), .peer_op = head.op});
  control(from.rank, {.kind = frame_kind::atomic_reply, .tag = *old, .peer_op = head.op});
}

result<std::uint64_t> engine::apply(const memory& at, const atomic_request& what) {
  std::uint64_t before = 0;
  if (auto done = memory_.read(at, 0, &before, sizeof before, touch_of(at)); !done) return std::move(done).error();
  const std::uint64_t now = after(what, before);
  if (now != before)
    if (auto done = memory_.write(at, 0, &now, sizeof now, touch_of(at)); !done) return std::move(done).error();
  return before;
}

}  // namespace pl::link
