// SPDX-License-Identifier: Apache-2.0
// UTF-8 in texts from outside: names of files, pools and certificates may be any bytes, while JSON and Prometheus' text
// format are UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace pl {

// Size of the well-formed character at the beginning of the text; 0 if there is none.
constexpr std::size_t utf8_character_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  const std::size_t bytes = byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : byte(0) < 0xf5 ? 4 : 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Overlong forms, UTF-16 surrogates, and values beyond the last character.
  const bool is_wrong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0) ||
                        (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  return is_wrong ? 0 : bytes;
}

// The same, but 0 for a control character.
constexpr std::size_t utf8_printable_bytes(std::string_view text) noexcept {
  const std::size_t bytes = utf8_character_bytes(text);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const bool is_control =
      (bytes == 1 && (byte(0) < 0x20 || byte(0) == 0x7f)) || (bytes == 2 && byte(0) == 0xc2 && byte(1) < 0xa0);
  return is_control ? 0 : bytes;
}

// Whether the text consists of characters that `bytes_of`, one of the two functions above, accepts.
template <class BytesOf>
constexpr bool is_all(std::string_view text, BytesOf bytes_of) noexcept {
  while (!text.empty()) {
    const std::size_t bytes = bytes_of(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}
constexpr bool is_utf8(std::string_view text) noexcept { return is_all(text, utf8_character_bytes); }
constexpr bool is_printable_utf8(std::string_view text) noexcept { return is_all(text, utf8_printable_bytes); }

}  // namespace pl
