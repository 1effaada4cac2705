// SPDX-License-Identifier: Apache-2.0
// A set of keys in order, for many short ones: a million of 16 bytes take 20 MB, where a std::set<std::string> takes 112.
//
//   separators (std::map)      "" ──▶ block   "user4" ──▶ block   "user7" ──▶ block
//   block, one allocation      u16 length, bytes │ u16 length, bytes │ ...      about 2 KiB, names in order
//
// Every name of a block is at least its separator and less than the next one. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace pl::store {

class name_set {
 public:
  name_set() = default;
  name_set(const name_set&) = delete;
  name_set& operator=(const name_set&) = delete;

  // Precondition of all: at most 65535 bytes. False: it is there already; it is not there.
  bool insert(std::string_view name);
  bool erase(std::string_view name);
  bool contains(std::string_view name) const;
  // Calls `each(name)` in order for those that are not less than `first`, until it returns false. The set stays as it is
  // meanwhile.
  template <class Each>
  void visit(std::string_view first, Each&& each) const;
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }

 private:
  static constexpr std::size_t kSplitBytes = 2048, kMergeBytes = 512, kStepBytes = 64;
  static constexpr std::size_t kLengthBytes = sizeof(std::uint16_t);

  class block {
   public:
    block() = default;
    block(block&& other) noexcept
        : bytes_(std::exchange(other.bytes_, nullptr)),
          used_(std::exchange(other.used_, 0)),
          room_(std::exchange(other.room_, 0)) {}
    block& operator=(block&&) = delete;
    ~block() { std::free(bytes_); }
    std::size_t used() const noexcept { return used_; }
    std::string_view name_at(std::size_t offset) const noexcept {
      std::uint16_t length = 0;
      std::memcpy(&length, bytes_ + offset, kLengthBytes);
      return {bytes_ + offset + kLengthBytes, length};
    }
    static std::size_t behind(std::size_t offset, std::string_view name) noexcept {
      return offset + kLengthBytes + name.size();
    }
    // Where the first name that is not less lies; used(): nowhere.
    std::size_t lower_bound(std::string_view name) const noexcept {
      std::size_t offset = 0;
      while (offset < used_) {
        const std::string_view present = name_at(offset);
        if (present >= name) break;
        offset = behind(offset, present);
      }
      return offset;
    }
    void insert(std::size_t offset, std::string_view name);
    void erase(std::size_t offset);
    void append(const block& other);
    // The names from about the middle on leave for a new block, which is empty if there is one name alone.
    block split();

   private:
    void resize(std::size_t room);
    char* bytes_ = nullptr;
    std::uint32_t used_ = 0, room_ = 0;
  };
  using blocks = std::map<std::string, block, std::less<>>;

  // Precondition: there are blocks.
  template <class Blocks>
  static auto block_of(Blocks& all, std::string_view name) {
    return std::prev(all.upper_bound(name));  // the first separator is empty
  }
  blocks blocks_;
  std::size_t count_ = 0;
};

template <class Each>
void name_set::visit(std::string_view first, Each&& each) const {
  if (blocks_.empty()) return;
  auto one = block_of(blocks_, first);
  std::size_t offset = one->second.lower_bound(first);
  for (; one != blocks_.end(); ++one, offset = 0) {
    while (offset < one->second.used()) {
      const std::string_view name = one->second.name_at(offset);
      if (!each(name)) return;
      offset = block::behind(offset, name);
    }
  }
}

}  // namespace pl::store
