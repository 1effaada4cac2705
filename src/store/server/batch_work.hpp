// SPDX-License-Identifier: Apache-2.0
// What the requests of one batch frame share until the last of them is answered.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "store/protocol/batch.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {

// The options of item `number`; `frame` has those of the whole frame.
store::put_options options_of_item(const store::put_options& frame, const store_protocol::batch_item& one,
                                   std::size_t number);

// Outcomes arrive on any thread, each in its own place. The last one sends the answer.
struct session::batch_work {
  explicit batch_work(std::size_t count) : outcomes(count), left(count) {}
  struct one_outcome {
    store_protocol::batch_outcome reported;
    std::string text, value;
    store::segment_list pieces;  // alternatively: pieces of the arena, in the value's order, while they are pinned
    std::uint64_t bytes = 0;     // size of the pieces
    void append_pieces(const std::byte* base, std::string& out) const {
      std::uint64_t left = bytes;
      for (const store::segment& piece : pieces) {
        const auto part = std::min(piece.size_bytes, left);
        out.append(reinterpret_cast<const char*>(base + piece.offset_bytes), part);
        left -= part;
      }
    }
    // Copies the bytes out, so that nothing needs to be pinned any more.
    void copy_pieces(const std::byte* base) {
      value.reserve(bytes);
      append_pieces(base, value);
      bytes = 0, pieces = store::segment_list();
    }
  };
  // Parts of the answer's frame: for texts, and for everything but texts and values in the longest batch.
  static constexpr std::size_t kTextBytes = 128u << 10;
  static constexpr std::size_t kOtherBytes =
      kTextBytes + store_protocol::kMaxBatchItems * store_protocol::kBatchOutcomeBytes;
  static_assert(kOtherBytes < store_protocol::kMaxBodyBytes / 4);
  std::vector<one_outcome> outcomes;
  std::atomic<std::size_t> left;
  std::atomic<std::int64_t> room{0};  // for values in the answer

  void fail(std::size_t i, const failure& reason) {
    constexpr std::size_t kMaxTextBytes = 300;  // short, because thousands of them share a frame
    outcomes[i].reported.status = reason.code;
    outcomes[i].text = reason.message.substr(0, kMaxTextBytes);
  }
  // `base` is the arena's address.
  std::string body(const std::byte* base) {
    std::size_t all_bytes = 0;
    for (const one_outcome& one : outcomes)
      all_bytes += store_protocol::kBatchOutcomeBytes + one.text.size() + one.value.size() + one.bytes;
    std::string out;
    out.reserve(all_bytes);
    std::size_t text_room = kTextBytes;  // once it is used up, an item has only its error number
    for (one_outcome& one : outcomes) {
      if (one.text.size() <= text_room) {
        one.reported.text = one.text;
        text_room -= one.text.size();
      }
      store_protocol::append_without_value(out, one.reported, one.value.size() + one.bytes);
      out += one.value;
      one.append_pieces(base, out);
    }
    return out;
  }
};

}  // namespace pl::store_server
