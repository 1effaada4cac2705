// SPDX-License-Identifier: Apache-2.0
// A sorted set of many short keys: a million of 16 bytes take 13 MB, where std::set<std::string> takes 112.
//
//   separators (std::map)      "" ──▶ block   "user4" ──▶ block   "user7" ──▶ block
//   block, one allocation      length, rest │ length, rest │ ...      about 1 KiB, names in order
//
// Every name of a block is at least its separator and less than the next separator, so it begins with their common
// prefix. The block stores only the rest of each name. Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
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

  // Precondition of all calls: the name has at most 65535 bytes. insert() returns false if it is present, erase() if it
  // is absent.
  bool insert(std::string_view name);
  bool erase(std::string_view name);
  bool contains(std::string_view name) const;
  // Calls `each(name)` in order for names that are not less than `first`, until it returns false. `each` must not
  // change the set.
  template <class Each>
  void visit(std::string_view first, Each&& each) const;
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }

 private:
  static constexpr std::size_t kSplitBytes = 1024, kMergeBytes = 256, kStepBytes = 64;

  class block {
   public:
    block() = default;
    block(block&& other) noexcept
        : bytes_(std::exchange(other.bytes_, nullptr)),
          used_(std::exchange(other.used_, 0)),
          room_(std::exchange(other.room_, 0)),
          prefix_bytes_(std::exchange(other.prefix_bytes_, 0)) {}
    block& operator=(block&& other) noexcept {
      std::swap(bytes_, other.bytes_), std::swap(used_, other.used_), std::swap(room_, other.room_);
      std::swap(prefix_bytes_, other.prefix_bytes_);
      return *this;
    }
    ~block() { std::free(bytes_); }
    std::size_t used() const noexcept { return used_; }
    // Length of the prefix of the separator that all names share and the block does not store.
    std::size_t prefix_bytes() const noexcept { return prefix_bytes_; }
    std::string_view rest_at(std::size_t offset) const noexcept {
      const auto first = static_cast<unsigned char>(bytes_[offset]);
      if (first != kLong) return {bytes_ + offset + 1, first};
      std::uint16_t length = 0;
      std::memcpy(&length, bytes_ + offset + 1, sizeof length);
      return {bytes_ + offset + 1 + sizeof length, length};
    }
    static std::size_t stored_bytes(std::string_view rest) noexcept {
      return rest.size() + (rest.size() < kLong ? 1 : 1 + sizeof(std::uint16_t));
    }
    static std::size_t behind(std::size_t offset, std::string_view rest) noexcept { return offset + stored_bytes(rest); }
    // Position of the first rest that is not less than `rest`; used() if there is none. Most rests differ in their
    // first bytes, which are compared as one number: memcmp took half of the time of a put of a new key.
    std::size_t lower_bound(std::string_view rest) const noexcept {
      const std::uint64_t wanted = first_bytes(rest);
      std::size_t offset = 0;
      while (offset < used_) {
        const std::string_view present = rest_at(offset);
        const std::uint64_t found = first_bytes_within(present);
        if (found != wanted ? found > wanted : present >= rest) break;
        offset = behind(offset, present);
      }
      return offset;
    }
    void insert(std::size_t offset, std::string_view rest);
    void erase(std::size_t offset);
    void append(const block& other);  // precondition: `other` has the same prefix
    // Moves the names from about the middle on to a new block, which is empty if there is only one name.
    block split();
    void set_prefix(std::size_t next_bytes, std::string_view separator);

   private:
    static constexpr unsigned char kLong = 255;  // the length is behind it
    // The first eight bytes as a number that orders as they do. A shorter rest is padded with zeros, so equal numbers
    // decide nothing.
    static std::uint64_t ordered(std::uint64_t bytes) noexcept {
      return std::endian::native == std::endian::little ? __builtin_bswap64(bytes) : bytes;
    }
    static std::uint64_t first_bytes(std::string_view rest) noexcept {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, rest.data(), std::min(rest.size(), sizeof bytes));
      return ordered(bytes);
    }
    // For a rest within this block, behind which kSlackBytes are readable.
    static std::uint64_t first_bytes_within(std::string_view rest) noexcept {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, rest.data(), sizeof bytes);
      const std::uint64_t all = ordered(bytes);
      if (rest.size() >= sizeof bytes) return all;
      return rest.empty() ? 0 : all & ~std::uint64_t{0} << (64 - 8 * rest.size());
    }
    static constexpr std::size_t kSlackBytes = sizeof(std::uint64_t);
    static std::size_t room_for(std::size_t used) noexcept {
      return (used + kSlackBytes + kStepBytes - 1) / kStepBytes * kStepBytes;
    }
    void resize(std::size_t room);
    char* bytes_ = nullptr;
    std::uint32_t used_ = 0, room_ = 0, prefix_bytes_ = 0;
  };
  using blocks = std::map<std::string, block, std::less<>>;

  // Precondition: there is a block.
  template <class Blocks>
  static auto block_of(Blocks& all, std::string_view name) {
    return std::prev(all.upper_bound(name));  // the first separator is empty
  }
  // Gives the block the common prefix of its separator and the next one.
  void settle_prefix(blocks::iterator one);
  blocks blocks_;
  std::size_t count_ = 0;
};

template <class Each>
void name_set::visit(std::string_view first, Each&& each) const {
  if (blocks_.empty()) return;
  auto one = block_of(blocks_, first);
  std::size_t offset = one->second.lower_bound(first.substr(one->second.prefix_bytes()));
  std::string name;
  for (; one != blocks_.end(); ++one, offset = 0) {
    const std::size_t prefix_bytes = one->second.prefix_bytes();
    name.assign(one->first, 0, prefix_bytes);
    while (offset < one->second.used()) {
      const std::string_view rest = one->second.rest_at(offset);
      name.resize(prefix_bytes);
      name.append(rest);
      if (!each(std::string_view(name))) return;
      offset = block::behind(offset, rest);
    }
  }
}

}  // namespace pl::store
