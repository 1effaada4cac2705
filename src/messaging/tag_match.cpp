// SPDX-License-Identifier: Apache-2.0
#include "messaging/tag_match.hpp"

namespace pl::messaging {

void tag_matcher::post(operation& receive) {
  receive.order = posted_++;
  (is_exact(receive) ? exact_[bucket_of(receive.peer, receive.tag)] : wild_).push_back(&receive);
}

operation* tag_matcher::take_receive(int source, std::uint64_t tag) {
  operation* found = exact_[bucket_of(source, tag)].first();
  while (found != nullptr && (found->peer != source || found->tag != tag)) found = bucket::next(found);
  // A wildcard receive matches first only if it was posted before the exact one.
  for (operation* current = wild_.first(); current != nullptr && (found == nullptr || current->order < found->order);
       current = bucket::next(current)) {
    if (!fits(current->peer, current->tag, current->mask, source, tag)) continue;
    found = current;
    break;
  }
  if (found != nullptr) remove_receive(*found);
  return found;
}

void tag_matcher::remove_receive(operation& receive) {
  (is_exact(receive) ? exact_[bucket_of(receive.peer, receive.tag)] : wild_).remove(&receive);
}

void tag_matcher::hold(operation& unexpected) {
  unexpected_buckets_[bucket_of(unexpected.info.source, unexpected.info.tag)].push_back(&unexpected);
  unexpected_.push_back(&unexpected);
}

operation* tag_matcher::find_unexpected(int source, std::uint64_t tag, std::uint64_t mask) {
  if (source != kAnySource && mask == kWholeTag) {
    operation* current = unexpected_buckets_[bucket_of(source, tag)].first();
    while (current != nullptr && (current->info.source != source || current->info.tag != tag))
      current = bucket::next(current);
    return current;
  }
  operation* current = unexpected_.first();
  while (current != nullptr && !fits(source, tag, mask, current->info.source, current->info.tag))
    current = order_list::next(current);
  return current;
}

void tag_matcher::remove_unexpected(operation& unexpected) {
  unexpected_buckets_[bucket_of(unexpected.info.source, unexpected.info.tag)].remove(&unexpected);
  unexpected_.remove(&unexpected);
}

}  // namespace pl::messaging
