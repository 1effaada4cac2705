// SPDX-License-Identifier: Apache-2.0
// Which receive gets which message: the earliest posted receive that a message fits, the earliest arrived message that a
// receive fits. Receives that name a source and a whole tag, and all arrivals, are found through a hash; only receives with
// a wildcard are searched one after another.
#pragma once

#include <array>

#include "messaging/request_state.hpp"

namespace pl::link {

class matcher {
 public:
  void post(operation& receive);
  // The receive that gets this message, taken out; null if none waits for it.
  operation* take_receive(int source, std::uint64_t tag);
  void remove_receive(operation& receive);

  void hold(operation& arrival);
  // What a receive for this would get, not taken out.
  operation* find_arrival(int source, std::uint64_t tag, std::uint64_t mask);
  void remove_arrival(operation& arrival);

  template <class Body>
  void for_each_receive(Body body) {  // body may remove the one it is given
    for (auto& each : exact_) walk(each.first(), body);
    walk(wild_.first(), body);
  }
  template <class Body>
  void for_each_arrival(Body body) {
    for (operation* at = arrivals_.first(); at != nullptr;) {
      operation* const next = arrivals_.next(at);
      body(*at);
      at = next;
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
  static void walk(operation* at, Body& body) {
    while (at != nullptr) {
      operation* const next = bucket::next(at);
      body(*at);
      at = next;
    }
  }

  std::array<bucket, kBuckets> exact_, arrived_;
  bucket wild_;
  order_list arrivals_;
  std::uint64_t posted_ = 0;
};

}  // namespace pl::link
