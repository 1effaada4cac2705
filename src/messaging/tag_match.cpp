// SPDX-License-Identifier: Apache-2.0
#include "messaging/tag_match.hpp"

#include <algorithm>

namespace pl::messaging {

// ---- Posted receives

void tag_matcher::post(operation& receive) {
  const selector wanted{receive.peer == kAnySource, false, receive.mask};
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const posted_class& each) { return each.wanted == wanted; });
  if (found != posted_.end()) ++found->receives;
  else posted_.push_back({wanted, 1});
  receive.match_entries = &receives_.insert(wanted.key_of(receive.peer, receive.tag), receive);
}

operation* tag_matcher::take_receive(int source, std::uint64_t tag) {
  const match_entry* earliest = nullptr;
  for (const posted_class& each : posted_) {
    ++comparisons_;
    const match_entry* const found = receives_.first(each.wanted.key_of(source, tag));
    if (found != nullptr && (earliest == nullptr || found->order < earliest->order)) earliest = found;
  }
  if (earliest == nullptr) return nullptr;
  operation* const taken = earliest->op;
  remove_receive(*taken);
  return taken;
}

void tag_matcher::remove_receive(operation& receive) {
  match_entry* const entry = std::exchange(receive.match_entries, nullptr);
  if (entry == nullptr) return;
  const selector wanted{entry->key.source == kAnySource, false, entry->key.mask};
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const posted_class& each) { return each.wanted == wanted; });
  if (--found->receives == 0) {
    *found = posted_.back();
    posted_.pop_back();
  }
  receives_.remove(*entry);
}

// ---- Unexpected messages

void tag_matcher::hold(operation& unexpected) {
  unexpected_.push_back(&unexpected);
  for (std::size_t i = 0; i < indexed_count_; ++i) index_message(indexed_[i].wanted, unexpected);
}

operation* tag_matcher::find_unexpected(int source, std::uint64_t tag, std::uint64_t mask) {
  if (unexpected_.is_empty()) return nullptr;
  return find_message({source == kAnySource, false, mask}, source, tag);
}

operation* tag_matcher::find_rendezvous(int source, std::uint64_t sender_operation) {
  // Eager messages have no operation at their sender.
  operation* const found = find_message({false, true, ~0ull}, source, sender_operation);
  return found != nullptr && found->is_rendezvous ? found : nullptr;
}

operation* tag_matcher::find_message(const selector& wanted, int source, std::uint64_t word) {
  const auto end = indexed_.begin() + indexed_count_;
  auto known = std::find_if(indexed_.begin(), end, [&](const indexed_class& each) { return each.wanted == wanted; });
  if (known == end) {
    int walked = 0;
    operation* current = unexpected_.first();
    for (; current != nullptr && walked < kWalked; current = order_list::next(current), ++walked) {
      ++comparisons_;
      if (fits(wanted, source, word, *current)) return current;
    }
    if (current == nullptr) return nullptr;
    index_messages(wanted);
    known = std::find_if(indexed_.begin(), indexed_.end(), [&](const indexed_class& each) { return each.wanted == wanted; });
  }
  known->last_use = ++uses_;
  const match_entry* const found = messages_.first(wanted.key_of(source, word));
  return found == nullptr ? nullptr : found->op;
}

void tag_matcher::index_messages(const selector& wanted) {
  if (indexed_count_ == kMaxIndexed) {
    const auto oldest = std::min_element(indexed_.begin(), indexed_.end(),
                                         [](const auto& left, const auto& right) { return left.last_use < right.last_use; });
    unindex_messages(oldest->wanted);
    *oldest = {wanted, 0};
  } else {
    indexed_[indexed_count_++] = {wanted, 0};
  }
  for (operation* each = unexpected_.first(); each != nullptr; each = order_list::next(each)) {
    ++comparisons_;
    index_message(wanted, *each);
  }
}

void tag_matcher::index_message(const selector& wanted, operation& unexpected) {
  auto& entry = messages_.insert(wanted.key_of(unexpected.info.source, word_of(wanted, unexpected)), unexpected);
  entry.next_of_op = std::exchange(unexpected.match_entries, &entry);
}

void tag_matcher::unindex_messages(const selector& wanted) {
  for (operation* each = unexpected_.first(); each != nullptr; each = order_list::next(each)) {
    ++comparisons_;
    const auto key = wanted.key_of(each->info.source, word_of(wanted, *each));
    match_entry** place = &each->match_entries;
    while (!((*place)->key == key)) place = &(*place)->next_of_op;
    match_entry& entry = **place;
    *place = entry.next_of_op;
    messages_.remove(entry);
  }
}

void tag_matcher::remove_unexpected(operation& unexpected) {
  while (unexpected.match_entries != nullptr) {
    match_entry& entry = *unexpected.match_entries;
    unexpected.match_entries = entry.next_of_op;
    messages_.remove(entry);
  }
  unexpected_.remove(&unexpected);
  if (unexpected_.is_empty()) indexed_count_ = 0;
}

}  // namespace pl::messaging
