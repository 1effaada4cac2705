// SPDX-License-Identifier: Apache-2.0
// What a store may answer for a key that only one client writes. A state is the number of the put that created it, 0
// for "no value". The bytes of a value follow from its key and number, so an answer shows which state it belongs to,
// and whether it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pl::soak {

using state_number = std::uint64_t;

class key_states {
 public:
  // An operation that makes this state was sent; its end is not known.
  void begin(state_number state) { possible_.insert(state); }
  // It was acknowledged: nothing older may be seen again.
  void acknowledge(state_number state) { possible_ = {state}; }
  // The server died, and the key's pool promises nothing beyond that.
  void may_be_lost() { possible_.insert(0); }
  bool may_be(state_number state) const { return possible_.count(state) != 0; }
  const std::set<state_number>& possible() const { return possible_; }

 private:
  std::set<state_number> possible_ = {0};
};

inline constexpr std::size_t kMinValueBytes = 24;  // key, number, length

// The value of that state, of this many bytes (at least kMinValueBytes).
std::vector<unsigned char> value_bytes(std::uint64_t key, state_number state, std::size_t size_bytes);
// Which state these bytes are of; nothing if they are of no state of this key, or not whole.
std::optional<state_number> state_of(std::uint64_t key, const unsigned char* bytes, std::size_t size_bytes);
// The same of the first `size_bytes` of a value of `whole_bytes`.
std::optional<state_number> state_of_part(std::uint64_t key, const unsigned char* bytes, std::size_t size_bytes,
                                          std::size_t whole_bytes);

std::string text_of(const std::set<state_number>& states);

}  // namespace pl::soak
