// SPDX-License-Identifier: Apache-2.0
// Which NIXL has loaded the plug-in.
#pragma once

#include <string>

#include "base/status.hpp"

namespace pl::nixl {

// "1.5.1" of nixl_cu12-1.5.1.dist-info beside the folder of `library`, a wheel's libnixl.so; empty: it is no wheel's.
std::string wheel_version(const std::string& library);

// `code`: an address in the NIXL library that calls. ENOTSUP: its interface is not one that nixl_abi.hpp describes.
status check_caller(const void* code);

// The same for a version and whether the library defines what came with version 1.0.
status check_version(const std::string& version, bool has_marker, const std::string& library);

}  // namespace pl::nixl
