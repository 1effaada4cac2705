// SPDX-License-Identifier: Apache-2.0
#include "messaging/request_state.hpp"

#include "messaging/transfer.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kKeptBytes = 8 << 10;  // memory that a pooled operation keeps; more is returned to the heap

}  // namespace

operation_pool::operation_pool(messenger_context* context) : home_(context) {}
operation_pool::~operation_pool() = default;

void operation_pool::grow() {
  blocks_.push_back(std::make_unique<operation[]>(kBlock));
  for (std::size_t i = kBlock; i-- > 0;) {
    auto& fresh = blocks_.back()[i];
    fresh.index = static_cast<std::uint32_t>((blocks_.size() - 1) * kBlock + i);
    fresh.context = home_;
    fresh.out.owner = &fresh;
    fresh.in_queue.next = free_;
    free_ = &fresh;
  }
}

void operation_pool::clear(operation& op) noexcept {
  op.is_sending = op.is_rendezvous = op.is_taken = op.is_orphaned = false;
  op.code = 0;
  op.peer_op = op.bytes = op.moved = op.cost = 0;
  op.window = 0;
  op.follower = op.leader = 0;
  op.info = {};
  op.range = {};
  if (!op.message.empty()) op.message.clear();
  op.before = nullptr;
  op.self_send = nullptr;
  op.out.payload = op.out.in_place_bytes = 0;
  op.out.in_place = nullptr;
  op.out.head.is_remote = 0;
  op.out.head.space = 0;
  op.space = tag_space::user;
  op.data.reset();
  if (op.held.capacity() > kKeptBytes) op.held = {};
  if (op.transfer != nullptr) op.transfer.reset();
}

operation* operation_pool::find(std::uint64_t id) const noexcept {
  const std::uint64_t index = id & 0xffffffffu;
  if (index / kBlock >= blocks_.size()) return nullptr;
  auto& found = blocks_[index / kBlock][index % kBlock];
  return found.state != operation_state::idle && found.id() == id ? &found : nullptr;
}

}  // namespace pl::messaging
