// SPDX-License-Identifier: Apache-2.0
// Addresses of UCX workers that came from other processes. UCX reads an address without being told its length and trusts
// what it says: one that breaks off is read beyond its end, one of an unknown version ends the process. So the lists within
// are gone through here first.
//
//   header, worker's id | device: domain, length, bytes | transport: name's sum, attributes, length, bytes | ... the last
//
// This keeps out what is malformed. It does not say who sent the address, or that anybody listens there.
#pragma once

#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl::ucx {

// EBADMSG: UCX must not see `peer`. `own` is an address of this process: if that has a form which is not known here (a later
// release's, UCX_UNIFIED_MODE), nothing is refused.
status check_address(std::string_view own, std::string_view peer);

// The same address with zeros behind it: transports know the lengths of their parts and read so many bytes, whatever length
// an address gives them.
std::string with_padding(std::string_view address);

}  // namespace pl::ucx
