// SPDX-License-Identifier: Apache-2.0
#include "store/engine/name_set.hpp"

#include <algorithm>
#include <iterator>

namespace pl::store {

void name_set::block::resize(std::size_t room) {
  void* const next = std::realloc(bytes_, room);
  if (next == nullptr) throw std::bad_alloc();
  bytes_ = static_cast<char*>(next);
  room_ = static_cast<std::uint32_t>(room);
}

void name_set::block::insert(std::size_t offset, std::string_view rest) {
  const std::size_t more = stored_bytes(rest);
  if (used_ + more + kSlackBytes > room_) resize(room_for(used_ + more));
  std::memmove(bytes_ + offset + more, bytes_ + offset, used_ - offset);
  char* place = bytes_ + offset;
  if (rest.size() < kLong) {
    *place++ = static_cast<char>(rest.size());
  } else {
    const auto length = static_cast<std::uint16_t>(rest.size());
    *place++ = static_cast<char>(kLong);
    std::memcpy(place, &length, sizeof length);
    place += sizeof length;
  }
  std::memcpy(place, rest.data(), rest.size());
  used_ += static_cast<std::uint32_t>(more);
}

void name_set::block::erase(std::size_t offset) {
  const std::size_t less = stored_bytes(rest_at(offset));
  std::memmove(bytes_ + offset, bytes_ + offset + less, used_ - offset - less);
  used_ -= static_cast<std::uint32_t>(less);
  // A smaller allocation may fail; the larger one then stays.
  if (room_ >= used_ + 4 * kStepBytes && used_ != 0) resize(room_for(used_));
}

void name_set::block::append(const block& other) {
  if (other.used_ == 0) return;
  if (used_ + other.used_ + kSlackBytes > room_) resize(room_for(used_ + other.used_));
  std::memcpy(bytes_ + used_, other.bytes_, other.used_);
  used_ += other.used_;
}

name_set::block name_set::block::split() {
  std::size_t middle = 0;
  while (middle < used_ / 2) middle = behind(middle, rest_at(middle));
  block out;
  out.prefix_bytes_ = prefix_bytes_;
  if (middle == used_) return out;
  out.resize(room_for(used_ - middle));
  std::memcpy(out.bytes_, bytes_ + middle, used_ - middle);
  out.used_ = static_cast<std::uint32_t>(used_ - middle);
  used_ = static_cast<std::uint32_t>(middle);
  resize(room_for(used_));
  return out;
}

void name_set::block::set_prefix(std::size_t next_bytes, std::string_view separator) {
  if (next_bytes == prefix_bytes_) return;
  block next;
  next.prefix_bytes_ = static_cast<std::uint32_t>(next_bytes);
  std::string rest;
  for (std::size_t offset = 0; offset < used_;) {
    const std::string_view present = rest_at(offset);
    offset = behind(offset, present);
    if (next_bytes >= prefix_bytes_) {
      next.insert(next.used_, present.substr(next_bytes - prefix_bytes_));
    } else {
      rest.assign(separator.substr(next_bytes, prefix_bytes_ - next_bytes)).append(present);
      next.insert(next.used_, rest);
    }
  }
  *this = std::move(next);
}

void name_set::settle_prefix(blocks::iterator one) {
  const auto next = std::next(one);
  std::size_t common = 0;
  if (next != blocks_.end()) {
    const std::string &a = one->first, &b = next->first;
    common = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }
  one->second.set_prefix(common, one->first);
}

bool name_set::insert(std::string_view name) {
  if (blocks_.empty()) blocks_.try_emplace(std::string());
  const auto mine = block_of(blocks_, name);
  block& target = mine->second;
  const std::string_view rest = name.substr(target.prefix_bytes());
  const std::size_t offset = target.lower_bound(rest);
  if (offset < target.used() && target.rest_at(offset) == rest) return false;
  target.insert(offset, rest);
  ++count_;
  if (target.used() <= kSplitBytes) return true;
  block behind = target.split();
  if (behind.used() == 0) return true;
  std::string separator(name.substr(0, target.prefix_bytes()));
  separator += behind.rest_at(0);
  const auto made = blocks_.try_emplace(std::next(mine), std::move(separator), std::move(behind));
  settle_prefix(mine);
  settle_prefix(made);
  return true;
}

bool name_set::erase(std::string_view name) {
  if (blocks_.empty()) return false;
  const auto mine = block_of(blocks_, name);
  block& target = mine->second;
  const std::string_view rest = name.substr(target.prefix_bytes());
  const std::size_t offset = target.lower_bound(rest);
  if (offset == target.used() || target.rest_at(offset) != rest) return false;
  target.erase(offset);
  --count_;
  if (target.used() >= kMergeBytes) return true;
  const auto next = std::next(mine);
  if (next != blocks_.end() && target.used() + next->second.used() <= kSplitBytes / 2) {
    // Both get the prefix of the block that they are about to form, which may be empty.
    next->second.set_prefix(0, next->first);
    target.set_prefix(0, mine->first);
    target.append(next->second);
    blocks_.erase(next);
    settle_prefix(mine);
  } else if (target.used() == 0 && mine != blocks_.begin()) {
    const auto before = std::prev(mine);
    blocks_.erase(mine);  // its names would belong to the previous block
    settle_prefix(before);
  }
  return true;
}

bool name_set::contains(std::string_view name) const {
  if (blocks_.empty()) return false;
  const auto mine = block_of(blocks_, name);
  const std::string_view rest = name.substr(mine->second.prefix_bytes());
  const std::size_t offset = mine->second.lower_bound(rest);
  return offset < mine->second.used() && mine->second.rest_at(offset) == rest;
}

}  // namespace pl::store
