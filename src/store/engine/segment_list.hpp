// SPDX-License-Identifier: Apache-2.0
// The pieces of a value. Most values have one, which is stored inline and needs no allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

// Assigned once, or replaced as a whole.
class segment_list {
 public:
  segment_list() : one_() {}
  ~segment_list() { clear(); }
  segment_list(segment_list&& other) noexcept : segment_list() { take(other); }
  segment_list& operator=(segment_list&& other) noexcept {
    if (this == &other) return *this;
    clear();
    take(other);
    return *this;
  }
  segment_list& operator=(std::span<const segment> pieces) {
    segment* const more = pieces.size() > 1 ? new segment[pieces.size()] : nullptr;
    clear();
    count_ = pieces.size();
    if (more != nullptr) more_ = std::copy(pieces.begin(), pieces.end(), more) - count_;
    else if (!pieces.empty()) one_ = pieces.front();
    return *this;
  }
  const segment* begin() const noexcept { return count_ > 1 ? more_ : &one_; }
  const segment* end() const noexcept { return begin() + count_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const segment& operator[](std::size_t i) const noexcept { return begin()[i]; }
  std::span<const segment> span() const noexcept { return {begin(), count_}; }

 private:
  void take(segment_list& other) noexcept {
    count_ = std::exchange(other.count_, 0);
    if (count_ > 1) more_ = other.more_;
    else one_ = other.one_;
  }
  void clear() noexcept {
    if (count_ > 1) delete[] more_;
    count_ = 0;
  }
  union {
    segment one_;
    segment* more_;
  };
  std::size_t count_ = 0;
};

// A view of a value's pieces, valid as long as the value.
class segment_view {
 public:
  segment_view() = default;
  explicit segment_view(segment one) : one_(one), count_(1) {}
  explicit segment_view(const segment_list& list) : many_(list.begin()), count_(list.size()) {}
  const segment* begin() const noexcept { return many_ != nullptr ? many_ : &one_; }
  const segment* end() const noexcept { return begin() + count_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const segment& operator[](std::size_t i) const noexcept { return begin()[i]; }
  std::span<const segment> span() const noexcept { return {begin(), count_}; }
  std::vector<segment> copy() const { return {begin(), end()}; }

 private:
  segment one_;
  const segment* many_ = nullptr;  // null: one_
  std::size_t count_ = 0;
};

// A vector that is almost always empty, in the space of a pointer.
class rare_segments {
 public:
  rare_segments() = default;
  rare_segments& operator=(std::vector<segment> pieces) {
    if (pieces.empty()) made_.reset();
    else made_ = std::make_unique<std::vector<segment>>(std::move(pieces));
    return *this;
  }
  operator const std::vector<segment>&() const noexcept { return get(); }
  const std::vector<segment>& get() const noexcept { return made_ ? *made_ : none(); }
  static const std::vector<segment>& none() noexcept {
    static const std::vector<segment> kNone;
    return kNone;
  }
  std::vector<segment> take() {
    auto out = made_ ? std::move(*made_) : std::vector<segment>();
    made_.reset();
    return out;
  }
  void append(const std::vector<segment>& pieces) {
    if (pieces.empty()) return;
    if (!made_) made_ = std::make_unique<std::vector<segment>>();
    made_->insert(made_->end(), pieces.begin(), pieces.end());
  }
  auto begin() const noexcept { return get().begin(); }
  auto end() const noexcept { return get().end(); }
  bool empty() const noexcept { return made_ == nullptr; }
  std::size_t size() const noexcept { return get().size(); }
  const segment& front() const noexcept { return made_->front(); }

 private:
  std::unique_ptr<std::vector<segment>> made_;  // null: empty
};

}  // namespace pl::store
