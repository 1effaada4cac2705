// SPDX-License-Identifier: Apache-2.0
// Authenticates the peer of a bootstrap connection: on one machine through the kernel, across machines through a secret that
// only the processes of the job can read.
//
// Owns: nothing. Threads: any.
#pragma once

#include <span>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/hmac.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::messaging {

// Reads the file named by PEERLANE_LINK_SECRET_FILE and strips the final newline. Empty: the variable is not set. EACCES:
// other users can read or write the file. EINVAL: its length is outside the limits.
result<std::string> read_secret();

// Random bytes from the kernel, fresh for each connection.
using nonce = std::array<std::byte, 32>;
result<nonce> make_nonce();

// Computes the proof that one side of a connection knows the secret. It covers both nonces, the hello and the side, so that
// a proof cannot be replayed on another connection or reflected to its sender.
enum class prover : char { rank_0 = '0', joining = 'j' };
digest prove(prover side, const std::string& secret, const nonce& of_rank_0, const nonce& of_joining,
             std::span<const std::byte> hello);

}  // namespace pl::messaging
