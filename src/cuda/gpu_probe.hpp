// SPDX-License-Identifier: Apache-2.0
// Is there a real GPU? Asked in a short-lived child process: the caller may still fork afterwards (CUDA does not survive
// fork), and a driver library without a device never enters this process, where its SONAME would block the simulated one.
#pragma once

#include <string>

namespace pl::cu {

struct real_gpu_probe {
  bool library_opens = false;
  bool usable = false;
  bool is_simulated = false;  // the library is the simulated GPU, found through LD_LIBRARY_PATH; not usable then
  std::string reason;         // why not; empty if usable
};

// Takes as long as the driver's cuInit, at most two minutes.
real_gpu_probe probe_real_gpu();

}  // namespace pl::cu
