// SPDX-License-Identifier: Apache-2.0
// What the requests of one batch frame have in common until the last of them is answered.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "store/protocol/batch.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {

// The options of the item with that number in its frame, whose own ones are `frame`.
store::put_options options_of_item(const store::put_options& frame, const store_protocol::batch_item& one,
                                   std::size_t number);

// Outcomes come on any thread, each into a place of its own; the last one sends the answer.
struct session::batch_work {
  explicit batch_work(std::size_t count) : outcomes(count), left(count) {}
  struct one_outcome {
    store_protocol::batch_outcome reported;
    std::string text, value;
  };
  // Of the answer's frame: for texts, and for all but texts and values of the longest batch.
  static constexpr std::size_t kTextBytes = 128u << 10;
  static constexpr std::size_t kOtherBytes =
      kTextBytes + store_protocol::kMaxBatchItems * store_protocol::kBatchOutcomeBytes;
  static_assert(kOtherBytes < store_protocol::kMaxBodyBytes / 4);
  std::vector<one_outcome> outcomes;
  std::atomic<std::size_t> left;
  std::atomic<std::int64_t> room{0};  // for values in the answer

  void fail(std::size_t i, const failure& reason) {
    constexpr std::size_t kMaxTextBytes = 300;  // thousands of them share a frame
    outcomes[i].reported.status = reason.code;
    outcomes[i].text = reason.message.substr(0, kMaxTextBytes);
  }
  std::string body() {
    std::string out;
    std::size_t text_room = kTextBytes;  // beyond it an item has its number alone
    for (one_outcome& one : outcomes) {
      one.reported.value = one.value;
      if (one.text.size() <= text_room) {
        one.reported.text = one.text;
        text_room -= one.text.size();
      }
      store_protocol::append(out, one.reported);
    }
    return out;
  }
};

}  // namespace pl::store_server
