// SPDX-License-Identifier: Apache-2.0
#include "store/engine/value.hpp"

namespace pl::store {

value::rare& value::need_rare() {
  if (shape_ == has_rare) return *rare_;
  auto made = std::make_unique<rare>();
  if (shape_ == one_piece) made->segments = std::vector<segment>{{offset_, length_bytes}};
  rare_ = made.release();
  shape_ = has_rare;
  return *rare_;
}

void value::set_segments(std::span<const segment> pieces) {
  if (shape_ == has_rare || pieces.size() > 1) {
    need_rare().segments = pieces;
  } else if (!pieces.empty()) {
    offset_ = pieces.front().offset_bytes;
    shape_ = one_piece;
  }
}

void value_ref::reset_many(std::span<value_ref> many) {
  std::vector<arena::released_piece> released;
  released.reserve(many.size());
  arena* memory = nullptr;  // of all of them
  for (value_ref& one : many) {
    value* const gone = std::exchange(one.one_, nullptr);
    if (gone == nullptr || gone->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    memory = &gone->home_->memory;
    gone->leave_memory(released);
    delete gone;
  }
  if (memory != nullptr) memory->release_many(released);
}

void value::take_identity(const value& source) {
  version = source.version;
  crc = source.crc;
  user_flags = source.user_flags.load();
  written_unix_ns = source.written_unix_ns;
  level = source.level;
  owner = source.owner;
  if (source.cache() == nullptr) return;
  need_rare().cache = source.rare_->cache;
  rare_->expires_ns = source.rare_->expires_ns;
}

}  // namespace pl::store
