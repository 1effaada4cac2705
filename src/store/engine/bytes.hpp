// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers to and from byte strings. The reader never reads past its end: it turns bad and yields zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace pl::store {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are stored as they lie in memory");

template <class T>
void append_number(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof raw);
  out.append(raw, sizeof raw);
}

inline void append_text(std::string& out, std::string_view text) {
  append_number(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

// Big-endian, so that byte order is number order.
inline void append_ordered(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift & 0xff));
}
inline void append_ordered(std::string& out, std::uint64_t value) {
  append_ordered(out, static_cast<std::uint32_t>(value >> 32));
  append_ordered(out, static_cast<std::uint32_t>(value));
}
inline std::uint32_t read_ordered(std::string_view input) {  // precondition: at least 4 bytes
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(input[i]);
  return value;
}

class byte_reader {
 public:
  explicit byte_reader(std::string_view input) noexcept : rest_(input) {}
  template <class T>
  T number() noexcept {
    T value{};
    const std::string_view raw = bytes(sizeof(T));
    if (good_) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  std::string_view bytes(std::size_t count) noexcept {
    if (!good_ || count > rest_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view text() noexcept { return bytes(number<std::uint32_t>()); }
  std::string_view rest() const noexcept { return rest_; }
  bool good() const noexcept { return good_; }
  bool good_end() const noexcept { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace pl::store
