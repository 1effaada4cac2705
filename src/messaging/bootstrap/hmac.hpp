// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA-256 (RFC 2104, FIPS 180-4) for the hello of ranks. Our own: libpeerlane needs no libcrypto, and nothing here is
// fast or secret-dependent in its branches but the final comparison, which takes the same time for every input.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace pl::messaging {

using digest = std::array<std::byte, 32>;

digest sha256(std::span<const std::byte> data);
digest hmac_sha256(std::string_view key, std::span<const std::byte> data);
bool is_equal(const digest& one, const digest& other) noexcept;

}  // namespace pl::messaging
