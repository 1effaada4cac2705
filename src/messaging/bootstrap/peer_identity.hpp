// SPDX-License-Identifier: Apache-2.0
// Authenticates the other end of a bootstrap connection: through the kernel on one machine, from anywhere through a secret
// that only the job's processes can read.
#pragma once

#include <span>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/hmac.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::messaging {

// The content of PEERLANE_LINK_SECRET_FILE without the final newline; empty: not set. EACCES: other users may read the file.
// EINVAL: its length is outside the limits.
result<std::string> read_secret();

using nonce = std::array<std::byte, 32>;
result<nonce> make_nonce();

// Proves knowledge of the secret for one connection: covers both nonces and the side that proves.
enum class prover : char { rank_0 = '0', joining = 'j' };
digest prove(prover side, const std::string& secret, const nonce& of_rank_0, const nonce& of_joining,
             std::span<const std::byte> hello);

}  // namespace pl::messaging
