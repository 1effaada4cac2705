// SPDX-License-Identifier: Apache-2.0
// Text in and out: printf into std::string, sizes with K/M/G suffixes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pl {

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// "65536", "0x10000", "64K", "64KiB", "1M", "2G": bytes, suffixes are powers of 1024, case-insensitive.
// Nothing on empty text, trailing garbage, a sign or overflow.
std::optional<std::uint64_t> parse_size(std::string_view text);

// Decimal or 0x-hex integer, whole text, sign allowed.
std::optional<std::int64_t> parse_integer(std::string_view text);

// 65536 -> "64 KiB", 1000 -> "1000 B": exact powers of 1024 only, otherwise bytes.
std::string format_size(std::uint64_t size_bytes);

// "1 GPU", "2 GPUs", "0 GPUs"; "1 process", "2 processes" with the plural given.
std::string plural(std::uint64_t count, const std::string& noun, const std::string& many = "");

// Like strerror, but thread-safe: "EINVAL (Invalid argument)".
std::string errno_text(int code);

}  // namespace pl
