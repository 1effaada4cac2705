// SPDX-License-Identifier: Apache-2.0
#include "messaging/request_state.hpp"

#include "messaging/rndv.hpp"

namespace pl::link {
namespace {

constexpr std::size_t kKeptBytes = 8 << 10;  // of a pooled operation's own memory; more goes back to the heap

}  // namespace

operation_pool::operation_pool(engine* home) : home_(home) {}
operation_pool::~operation_pool() = default;

operation& operation_pool::take(operation_kind kind) {
  if (free_ == nullptr) {
    blocks_.push_back(std::make_unique<operation[]>(kBlock));
    for (std::size_t i = kBlock; i-- > 0;) {
      auto& fresh = blocks_.back()[i];
      fresh.index = static_cast<std::uint32_t>((blocks_.size() - 1) * kBlock + i);
      fresh.home = home_;
      fresh.out.owner = &fresh;
      fresh.in_queue.next = free_;
      free_ = &fresh;
    }
  }
  operation& taken = *free_;
  free_ = taken.in_queue.next;
  taken.in_queue = {};
  taken.kind = kind;
  taken.state = operation_state::waiting;
  ++in_use_;
  return taken;
}

void operation_pool::give_back(operation& what) noexcept {
  what.state = operation_state::idle;
  what.is_released = what.is_departing = what.is_announced = what.is_taken = false;
  what.code = 0;
  ++what.generation;
  what.peer_op = what.bytes = what.moved = what.cost = 0;
  what.window = 0;
  what.info = {};
  if (!what.message.empty()) what.message.clear();
  what.before = nullptr;
  what.self_send = nullptr;
  what.out.payload = what.out.in_place_bytes = 0;
  what.out.in_place = nullptr;
  what.out.head.is_remote = 0;
  what.data.reset();
  if (what.held.capacity() > kKeptBytes) what.held = {};
  if (what.transfer != nullptr) what.transfer.reset();
  what.in_queue.next = free_;
  free_ = &what;
  --in_use_;
}

operation* operation_pool::find(std::uint64_t id) const noexcept {
  const std::uint64_t index = id & 0xffffffffu;
  if (index / kBlock >= blocks_.size()) return nullptr;
  auto& found = blocks_[index / kBlock][index % kBlock];
  return found.state != operation_state::idle && found.id() == id ? &found : nullptr;
}

}  // namespace pl::link
