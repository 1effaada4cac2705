// SPDX-License-Identifier: Apache-2.0
#include "store/engine/name_set.hpp"

#include <iterator>

namespace pl::store {

void name_set::block::resize(std::size_t room) {
  void* const next = std::realloc(bytes_, room);
  if (next == nullptr) throw std::bad_alloc();
  bytes_ = static_cast<char*>(next);
  room_ = static_cast<std::uint32_t>(room);
}

void name_set::block::insert(std::size_t offset, std::string_view name) {
  const std::size_t more = kLengthBytes + name.size();
  if (used_ + more > room_) resize((used_ + more + kStepBytes - 1) / kStepBytes * kStepBytes);
  std::memmove(bytes_ + offset + more, bytes_ + offset, used_ - offset);
  const auto length = static_cast<std::uint16_t>(name.size());
  std::memcpy(bytes_ + offset, &length, kLengthBytes);
  std::memcpy(bytes_ + offset + kLengthBytes, name.data(), name.size());
  used_ += static_cast<std::uint32_t>(more);
}

void name_set::block::erase(std::size_t offset) {
  const std::size_t less = kLengthBytes + name_at(offset).size();
  std::memmove(bytes_ + offset, bytes_ + offset + less, used_ - offset - less);
  used_ -= static_cast<std::uint32_t>(less);
  // A smaller allocation that fails leaves the larger one.
  if (room_ >= used_ + 4 * kStepBytes && used_ != 0) resize((used_ + kStepBytes - 1) / kStepBytes * kStepBytes);
}

void name_set::block::append(const block& other) {
  if (other.used_ == 0) return;
  if (used_ + other.used_ > room_) resize((used_ + other.used_ + kStepBytes - 1) / kStepBytes * kStepBytes);
  std::memcpy(bytes_ + used_, other.bytes_, other.used_);
  used_ += other.used_;
}

name_set::block name_set::block::split() {
  std::size_t middle = 0;
  while (middle < used_ / 2) middle = behind(middle, name_at(middle));
  block out;
  if (middle == used_) return out;
  out.resize((used_ - middle + kStepBytes - 1) / kStepBytes * kStepBytes);
  std::memcpy(out.bytes_, bytes_ + middle, used_ - middle);
  out.used_ = static_cast<std::uint32_t>(used_ - middle);
  used_ = static_cast<std::uint32_t>(middle);
  resize((used_ + kStepBytes - 1) / kStepBytes * kStepBytes);
  return out;
}

bool name_set::insert(std::string_view name) {
  if (blocks_.empty()) blocks_.try_emplace(std::string());
  const auto mine = block_of(blocks_, name);
  block& target = mine->second;
  const std::size_t offset = target.lower_bound(name);
  if (offset < target.used() && target.name_at(offset) == name) return false;
  target.insert(offset, name);
  ++count_;
  if (target.used() <= kSplitBytes) return true;
  block behind = target.split();
  if (behind.used() == 0) return true;
  std::string separator(behind.name_at(0));
  blocks_.try_emplace(std::next(mine), std::move(separator), std::move(behind));
  return true;
}

bool name_set::erase(std::string_view name) {
  if (blocks_.empty()) return false;
  const auto mine = block_of(blocks_, name);
  block& target = mine->second;
  const std::size_t offset = target.lower_bound(name);
  if (offset == target.used() || target.name_at(offset) != name) return false;
  target.erase(offset);
  --count_;
  if (target.used() >= kMergeBytes) return true;
  const auto next = std::next(mine);
  if (next != blocks_.end() && target.used() + next->second.used() <= kSplitBytes * 3 / 4) {
    target.append(next->second);
    blocks_.erase(next);
  } else if (target.used() == 0 && mine != blocks_.begin()) {
    blocks_.erase(mine);  // its names would be the block's before
  }
  return true;
}

bool name_set::contains(std::string_view name) const {
  if (blocks_.empty()) return false;
  const auto mine = block_of(blocks_, name);
  const std::size_t offset = mine->second.lower_bound(name);
  return offset < mine->second.used() && mine->second.name_at(offset) == name;
}

}  // namespace pl::store
