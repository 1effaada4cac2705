// SPDX-License-Identifier: Apache-2.0
// Tag matching. A message matches the earliest posted receive that fits it; a receive matches the earliest unexpected
// message that fits it.
//
// Receives are grouped into classes with the same mask, either from one source or from any source. Programs use one to four
// classes: whole tags or any tag, from one rank or from any. Within a class, the source and the tag bits under the mask are
// the key of a hash table. So a message does one lookup in each class with receives, and takes the earliest receive found.
//
// Unexpected messages are in one list, in order of arrival. A receive that does not find its message among the first few
// builds a hash table for its class, which then contains every message until the list is empty again. So each class costs a
// message at most one insertion, and messages that are received in order cost none.
//
// Owns: the order of operations; the pool owns the operations. Threads: the messenger's lock guards all calls. Errors: none.
// Limits: a message does a lookup in every class, so thousands of different masks at a time are slow. At most kMaxIndexed
// classes of messages have a table at a time. A receive of a further class walks over all messages and replaces the table
// that was not used for longest.
#pragma once

#include <array>
#include <vector>

#include "messaging/match_index.hpp"
#include "messaging/request_state.hpp"

namespace pl::messaging {

class tag_matcher {
 public:
  void post(operation& receive);
  // Removes and returns the posted receive that this message matches; null: none.
  operation* take_receive(int source, std::uint64_t tag);
  void remove_receive(operation& receive);  // no effect if it is not posted

  void hold(operation& unexpected);
  // Returns the unexpected message that such a receive would match, without removing it; null: none.
  operation* find_unexpected(int source, std::uint64_t tag, std::uint64_t mask);
  // Returns the unexpected rendezvous message with this operation number at its sender; null: none.
  operation* find_rendezvous(int source, std::uint64_t sender_operation);
  void remove_unexpected(operation& unexpected);  // no effect if it is not held

  // Number of receives, messages and classes that were compared since the start.
  std::uint64_t comparisons() const noexcept { return comparisons_ + receives_.comparisons() + messages_.comparisons(); }

 private:
  // Selection criteria of a receive, or of a lookup of a message.
  struct selector {
    bool is_any_source = false;
    bool is_sender_operation = false;
    std::uint64_t mask = 0;
    bool operator==(const selector&) const = default;
    match_key key_of(int source, std::uint64_t word) const noexcept {
      return {is_any_source ? kAnySource : source, is_sender_operation, mask, word & mask};
    }
  };
  struct posted_class {
    selector wanted;
    std::uint64_t receives = 0;
  };
  struct indexed_class {
    selector wanted;
    std::uint64_t last_use = 0;
  };
  using order_list = intrusive_list<operation, &operation::in_order>;
  static constexpr std::size_t kMaxIndexed = 8;
  static constexpr int kWalked = 8;  // messages that are compared before a class gets its table

  operation* find_message(const selector& wanted, int source, std::uint64_t word);
  void index_messages(const selector& wanted);
  void unindex_messages(const selector& wanted);
  void index_message(const selector& wanted, operation& unexpected);
  static std::uint64_t word_of(const selector& wanted, const operation& unexpected) noexcept {
    return wanted.is_sender_operation ? unexpected.peer_op : unexpected.info.tag;
  }
  static bool fits(const selector& wanted, int source, std::uint64_t word, const operation& unexpected) noexcept {
    return (wanted.is_any_source || source == unexpected.info.source) &&
           ((word ^ word_of(wanted, unexpected)) & wanted.mask) == 0;
  }

  match_index receives_, messages_;
  std::vector<posted_class> posted_;  // classes with receives
  std::array<indexed_class, kMaxIndexed> indexed_{};
  std::size_t indexed_count_ = 0;
  order_list unexpected_;
  std::uint64_t uses_ = 0;
  std::uint64_t comparisons_ = 0;
};

}  // namespace pl::messaging
