// SPDX-License-Identifier: Apache-2.0
// The pieces of a value: mostly one, which lies within, and costs no allocation.
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

// Given once, or anew as a whole.
class segment_list {
 public:
  segment_list() = default;
  segment_list(const segment_list&) = delete;
  segment_list& operator=(const segment_list&) = delete;
  segment_list& operator=(const std::vector<segment>& pieces) {
    std::unique_ptr<segment[]> more;
    if (pieces.size() > 1) {
      more = std::make_unique<segment[]>(pieces.size());
      std::copy(pieces.begin(), pieces.end(), more.get());
    }
    more_ = std::move(more);
    count_ = static_cast<std::uint32_t>(pieces.size());
    one_ = pieces.size() == 1 ? pieces.front() : segment{};
    return *this;
  }
  const segment* begin() const noexcept { return count_ > 1 ? more_.get() : &one_; }
  const segment* end() const noexcept { return begin() + count_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const segment& operator[](std::size_t i) const noexcept { return begin()[i]; }
  std::vector<segment> copy() const { return {begin(), end()}; }

 private:
  segment one_;
  std::unique_ptr<segment[]> more_;
  std::uint32_t count_ = 0;
};

// As a vector that is nearly always empty, in a pointer's room.
class rare_segments {
 public:
  rare_segments() = default;
  rare_segments& operator=(std::vector<segment> pieces) {
    if (pieces.empty()) made_.reset();
    else made_ = std::make_unique<std::vector<segment>>(std::move(pieces));
    return *this;
  }
  operator const std::vector<segment>&() const noexcept { return get(); }
  const std::vector<segment>& get() const noexcept {
    static const std::vector<segment> kNone;
    return made_ ? *made_ : kNone;
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
