// SPDX-License-Identifier: Apache-2.0
#include "messaging/tag_match.hpp"

namespace pl::link {

void matcher::post(operation& receive) {
  receive.order = posted_++;
  (is_exact(receive) ? exact_[bucket_of(receive.peer, receive.tag)] : wild_).push_back(&receive);
}

operation* matcher::take_receive(int source, std::uint64_t tag) {
  operation* found = exact_[bucket_of(source, tag)].first();
  while (found != nullptr && (found->peer != source || found->tag != tag)) found = bucket::next(found);
  // Of the ones with wildcards, only those posted before the exact one come first.
  for (operation* at = wild_.first(); at != nullptr && (found == nullptr || at->order < found->order);
       at = bucket::next(at)) {
    if (!fits(at->peer, at->tag, at->mask, source, tag)) continue;
    found = at;
    break;
  }
  if (found != nullptr) remove_receive(*found);
  return found;
}

void matcher::remove_receive(operation& receive) {
  (is_exact(receive) ? exact_[bucket_of(receive.peer, receive.tag)] : wild_).remove(&receive);
}

void matcher::hold(operation& arrival) {
  arrived_[bucket_of(arrival.info.source, arrival.info.tag)].push_back(&arrival);
  arrivals_.push_back(&arrival);
}

operation* matcher::find_arrival(int source, std::uint64_t tag, std::uint64_t mask) {
  if (source != kAnySource && mask == kWholeTag) {
    operation* at = arrived_[bucket_of(source, tag)].first();
    while (at != nullptr && (at->info.source != source || at->info.tag != tag)) at = bucket::next(at);
    return at;
  }
  operation* at = arrivals_.first();
  while (at != nullptr && !fits(source, tag, mask, at->info.source, at->info.tag)) at = order_list::next(at);
  return at;
}

void matcher::remove_arrival(operation& arrival) {
  arrived_[bucket_of(arrival.info.source, arrival.info.tag)].remove(&arrival);
  arrivals_.remove(&arrival);
}

}  // namespace pl::link
