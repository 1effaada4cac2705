// SPDX-License-Identifier: Apache-2.0
// Tag matching. A message goes to the earliest posted receive that it fits; a receive takes the earliest unexpected message
// that it fits. Unexpected messages, and receives without wildcards, are found through a hash table. Receives with wildcards
// are searched linearly.
//
// Owns: the order of operations, which stay the pool's. Threads: the messenger's lock guards all calls. Errors: none.
#pragma once

#include <array>

#include "messaging/request_state.hpp"

namespace pl::messaging {

class tag_matcher {
 public:
  void post(operation& receive);
  // Removes and returns the posted receive that this message matches; null: none.
  operation* take_receive(int source, std::uint64_t tag);
  void remove_receive(operation& receive);

  void hold(operation& unexpected);
  // The unexpected message that such a receive would match, without removing it; null: none.
  operation* find_unexpected(int source, std::uint64_t tag, std::uint64_t mask);
  void remove_unexpected(operation& unexpected);

  template <class Body>
  void for_each_receive(Body body) {  // `body` may remove its argument
    for (auto& each : exact_) walk(each.first(), body);
    walk(wild_.first(), body);
  }
  template <class Body>
  void for_each_unexpected(Body body) {
    for (operation* current = unexpected_.first(); current != nullptr;) {
      operation* const next = unexpected_.next(current);
      body(*current);
      current = next;
    }
  }

 private:
  using bucket = intrusive_list<operation, &operation::in_bucket>;
  using order_list = intrusive_list<operation, &operation::in_order>;
  static constexpr std::size_t kBuckets = 2048;
  static std::size_t bucket_of(int source, std::uint64_t tag) noexcept {
    std::uint64_t x = tag + static_cast<std::uint64_t>(source) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9ull;
    return (x ^ x >> 29) % kBuckets;
  }
  static bool is_exact(const operation& receive) noexcept { return receive.peer != kAnySource && receive.mask == kWholeTag; }
  static bool fits(int wanted_source, std::uint64_t wanted_tag, std::uint64_t mask, int source, std::uint64_t tag) noexcept {
    return (wanted_source == kAnySource || wanted_source == source) && ((wanted_tag ^ tag) & mask) == 0;
  }
  template <class Body>
  static void walk(operation* current, Body& body) {
    while (current != nullptr) {
      operation* const next = bucket::next(current);
      body(*current);
      current = next;
    }
  }

  std::array<bucket, kBuckets> exact_, unexpected_buckets_;
  bucket wild_;
  order_list unexpected_;
  std::uint64_t posted_ = 0;
};

}  // namespace pl::messaging
