// SPDX-License-Identifier: Apache-2.0
// Every driver call that the simulated GPU does not have: exported all the same, so that programs load, and answered
// with CUDA_ERROR_NOT_SUPPORTED and one log line a name. The list is unsupported.def (sim/update_symbols.py makes it).
#include "sim/device.hpp"

namespace pl::sim {

#define PL_UNSUPPORTED(name)                                         \
  PL_SIM_API name() {                                                \
    log_unsupported_once(#name, "is not part of the simulated GPU"); \
    return code::not_supported;                                      \
  }
#include "unsupported.def"
#undef PL_UNSUPPORTED

}  // namespace pl::sim
