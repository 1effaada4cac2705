// SPDX-License-Identifier: Apache-2.0
// The simulated GPU that lies beside this library (or program): found by the place of this code's own file, so that
// PEERLANE_GPU=sim works in every program that loads Peerlane, wherever it was installed.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl::cu {

// What to do when no GPU answers.
inline constexpr const char* kNoRealGpuAdvice =
    "`peerlane doctor` looks for the cause; PEERLANE_GPU=sim runs on the simulated GPU instead";

// Where the simulated GPU's libcuda.so.1 may lie, in the order in which it is looked for: beside this file (a build's out/,
// a wheel's native/), in <libdir>/peerlane (installed), and where a Python module of either finds it.
std::vector<std::string> simulated_gpu_places();

// The folder of the first of these that is there, else of the first; what LD_LIBRARY_PATH needs.
std::string simulated_gpu_folder();

// Makes the simulated GPU this process's libcuda.so.1 and returns its dlopen handle. Loaded first, its SONAME satisfies
// every later dlopen("libcuda.so.1"). ENODEV, with the places, if it is in none of them. Any thread.
result<void*> load_simulated_gpu();

// Whether a dlopen handle of a libcuda.so.1 is the simulated GPU's.
bool is_simulated_gpu(void* library);

// File of a loaded library that defines `symbol`; empty if it defines none.
std::string library_file(void* library, const char* symbol);

}  // namespace pl::cu
