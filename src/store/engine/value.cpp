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

void value::set_segments(const std::vector<segment>& pieces) {
  if (shape_ == has_rare || pieces.size() > 1 || length_bytes > arena::kSlotBytes) {
    need_rare().segments = pieces;
  } else if (!pieces.empty()) {
    offset_ = pieces.front().offset_bytes;
    shape_ = one_piece;
  }
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
