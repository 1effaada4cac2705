// SPDX-License-Identifier: Apache-2.0
// Who stands at the other end of a connection by which ranks meet: by the kernel's word on one machine, by a secret that
// only the job's processes can read from anywhere.
#pragma once

#include <span>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/hmac.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::link {

// What PEERLANE_LINK_SECRET_FILE holds, without the newline at its end; empty: it is not set. EACCES: others may read the
// file. EINVAL: it is no secret.
result<std::string> read_secret();

using nonce = std::array<std::byte, 32>;
result<nonce> make_nonce();

// Proof of the secret by one end, for this connection alone: both nonces are in it, and which end it is.
enum class prover : char { rank_0 = '0', joining = 'j' };
digest prove(prover who, const std::string& secret, const nonce& of_rank_0, const nonce& of_joining,
             std::span<const std::byte> hello);

}  // namespace pl::link
