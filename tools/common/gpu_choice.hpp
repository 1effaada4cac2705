// SPDX-License-Identifier: Apache-2.0
// Real GPU or simulated one: decided once, before anything opens libcuda.
//
// The simulated GPU is a shared library with the SONAME libcuda.so.1. Loaded first, it satisfies every later
// dlopen("libcuda.so.1") of this process, so neither the library under test nor the tools know the difference.
#pragma once

#include <string>

#include "base/status.hpp"
#include "cuda/gpu_probe.hpp"
#include "cuda/simulated_gpu.hpp"

namespace pl::tools {

enum class gpu_kind { real, simulated };

using cu::kNoRealGpuAdvice;
using cu::probe_real_gpu;
using cu::real_gpu_probe;

// Decides by PEERLANE_GPU and loads the library. Calls cuInit in a short-lived child only, so that the caller may still
// fork (CUDA does not survive fork) and so that a driver library without a device never enters this process, where its
// SONAME would block the simulated one. Sets PEERLANE_GPU for children to what was chosen. Idempotent.
// ENODEV, with the fix in the message: PEERLANE_GPU=real but no GPU answers, or no simulated GPU beside the program.
result<gpu_kind> choose_gpu();

// Why auto did not take a real GPU; empty if it did or was not asked.
const std::string& why_not_real();

// The first line of every output that was made on the simulated GPU.
inline constexpr const char* kSimulatedHeader = "simulated GPU: timings are not a GPU's";
// Prints it to stdout, once per process, if the choice was simulated.
void print_header_if_simulated();

// Folder of the running program, without a trailing slash.
std::string program_folder();

}  // namespace pl::tools
