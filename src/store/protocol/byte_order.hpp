// SPDX-License-Identifier: Apache-2.0
// Numbers as little-endian bytes, to and from buffers of any alignment, and a bounds-checked reader.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace pl::store_protocol {

static_assert(std::endian::native == std::endian::little, "the codec stores numbers as this machine has them");

template <class T>
void put_le(std::byte* memory, T value) noexcept {
  std::memcpy(memory, &value, sizeof value);
}

template <class T>
T get_le(const std::byte* memory) noexcept {
  T value;
  std::memcpy(&value, memory, sizeof value);
  return value;
}

template <class T>
void append_le(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads fields from the front of a text. Past the end every read yields zero, and ok() is false from then on.
class byte_reader {
 public:
  explicit byte_reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() noexcept {
    T value{};
    const auto raw = take(sizeof value);
    if (ok_) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  std::string_view take(std::size_t bytes) noexcept {
    if (bytes > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const auto out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  std::string_view rest() noexcept { return take(rest_.size()); }
  bool ok() const noexcept { return ok_; }
  bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace pl::store_protocol
