// SPDX-License-Identifier: Apache-2.0
// What every file of the simulated GPU shares: the ABI types under short names, and how a driver call is exported.
//
// The library exports the driver's real names, so calls inside it go through these functions only where the semantics
// are really the same; anything shared lives in a C++ function beside them.
#pragma once

#include "cuda/driver_abi.hpp"

#define PL_SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define PL_SIM_API PL_SIM_EXPORT ::pl::cu::result_t

namespace pl::sim {

using namespace cu;  // NOLINT: the whole folder speaks the driver's types
namespace code = cu::error_code;

}  // namespace pl::sim
