// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA-256 (RFC 2104, FIPS 180-4), with which ranks authenticate their hello frames. Implemented in this project so that
// libpeerlane does not depend on libcrypto. Speed does not matter for hellos, and no branch depends on the secret.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace pl::messaging {

using digest = std::array<std::byte, 32>;

digest sha256(std::span<const std::byte> data);
// `key` may have any length; keys longer than 64 bytes are hashed first (RFC 2104).
digest hmac_sha256(std::string_view key, std::span<const std::byte> data);
// Compares in constant time, so that an attacker cannot learn a digest byte by byte.
bool is_equal(const digest& one, const digest& other) noexcept;

}  // namespace pl::messaging
