// SPDX-License-Identifier: Apache-2.0
#include "triggered/receive_slots.hpp"

#include <algorithm>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/log.hpp"
#include "cuda/pointer.hpp"

namespace pl::triggered {
namespace {

constexpr std::uint64_t kPieceBytes = 16u << 20;  // half of a window of the mapping cache: always found in one piece

copy::mapping_cache::options cache_options() {
  copy::mapping_cache::options out;
  out.window_bytes = 2 * kPieceBytes;
  out.capacity_bytes = 1ull << 46;  // everything is held for as long as its window lives: nothing may be evicted
  out.sweep_ms = 0;
  return out;
}

}  // namespace

receive_slots::~receive_slots() {
  places_.clear();
  cache_.reset();
}

void receive_slots::add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes) {
  const std::lock_guard changing(changing_);
  {
    const std::lock_guard lock(mutex_);
    auto& window_place = places_[window];
    window_place.memory = memory;
    window_place.bytes = bytes;
  }
  if (is_needed_) map(window, memory, bytes);
}

void receive_slots::remove(std::uint32_t window) {
  const std::lock_guard changing(changing_);
  std::map<std::uint32_t, place>::node_type gone;  // unmapped after the lock
  {
    const std::lock_guard lock(mutex_);
    gone = places_.extract(window);
  }
  if (gone.empty()) return;
  if (engine_ != nullptr) engine_->remove(window);
  gone.mapped().pieces.clear();
  if (cache_ != nullptr) static_cast<void>(cache_->trim(false));
}

void receive_slots::need() {
  const std::lock_guard changing(changing_);
  if (!is_needed_) {
    auto engine = receive_engine::open(context_);
    if (engine) engine_ = *std::move(engine);
    else why_no_engine_ = engine.error().message;
  }
  is_needed_ = true;
  std::vector<std::pair<std::uint32_t, std::pair<cu::device_ptr, std::uint64_t>>> missing;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, window_place] : places_)
      if (!window_place.is_tried) missing.push_back({id, {window_place.memory, window_place.bytes}});
  }
  for (const auto& [id, memory] : missing) map(id, memory.first, memory.second);
}

// Under changing_.
void receive_slots::map(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes) {
  if (cache_ == nullptr) cache_ = std::make_unique<copy::mapping_cache>(cache_options());
  std::string why_not;
  std::vector<copy::mapping_cache::hold> pieces;
  for (std::uint64_t offset = 0; offset < bytes && why_not.empty(); offset += kPieceBytes) {
    const auto info = cu::inspect_pointer(*context_.cuda, memory + offset);
    if (!info) {
      why_not = info.error().message;
      break;
    }
    auto found = cache_->find(*context_.cuda, *info, memory + offset, std::min(kPieceBytes, bytes - offset));
    if (found) pieces.push_back(std::move(found).value());
    else why_not = found.error().message;
  }
  if (!why_not.empty()) pieces.clear();
  if (engine_ != nullptr)
    if (const auto added = engine_->add(window, memory, bytes); !added)
      PL_LOG(info, "stream: the CPU stores what comes into window %u: %s", window, added.error().message.c_str());
  const std::lock_guard lock(mutex_);
  auto& window_place = places_[window];
  window_place.is_tried = true;
  window_place.why_not = std::move(why_not);
  window_place.pieces = std::move(pieces);
}

status receive_slots::check(std::uint32_t window, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return check_locked(window, offset, bytes);
}

status receive_slots::check_locked(std::uint32_t window, std::uint64_t offset, std::uint64_t bytes) {
  const auto found = places_.find(window);
  if (found == places_.end())
    return failure{EPROTO, "the peer put into window " + std::to_string(window) + ", which this process does not expose"};
  const auto& window_place = found->second;
  if (offset > window_place.bytes || bytes > window_place.bytes - offset)
    return failure{EPROTO, "the peer put " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                               " of a window of " + std::to_string(window_place.bytes) + " bytes"};
  return {};
}

status receive_slots::store(std::uint32_t window, std::uint64_t offset, const void* data, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (auto inside = check_locked(window, offset, bytes); !inside) return inside;
  const auto& window_place = places_.find(window)->second;
  if (window_place.pieces.empty())
    return failure{ENOTSUP, "the CPU cannot write window " + std::to_string(window) + ": " + window_place.why_not};
  const auto* origin = static_cast<const char*>(data);
  while (bytes != 0) {
    const auto& piece = window_place.pieces[offset / kPieceBytes];
    const auto in_piece = offset % kPieceBytes;
    const auto part = std::min(bytes, kPieceBytes - in_piece);
    arch::copy_to_unfenced(piece.type, piece.data + in_piece, origin, part);
    arch::publish_to_device(piece.type);
    offset += part;
    origin += part;
    bytes -= part;
  }
  return {};
}

}  // namespace pl::triggered
