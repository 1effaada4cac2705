// SPDX-License-Identifier: Apache-2.0
#include "tools/common/gpu_choice.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/env.hpp"
#include "base/own_program.hpp"
#include "base/text.hpp"

namespace pl::tools {
namespace {

std::optional<gpu_kind> g_choice;
std::string g_why_not_real;

void remember(gpu_kind kind) {
  g_choice = kind;
  setenv("PEERLANE_GPU", kind == gpu_kind::real ? "real" : "sim", 1);
}

}  // namespace

std::string program_folder() {
  const std::string out = own_program_file();
  const auto slash = out.rfind('/');
  return slash == std::string::npos ? "." : out.substr(0, slash);
}

result<gpu_kind> choose_gpu() {
  if (g_choice) return *g_choice;
  const std::string wanted = env_read("PEERLANE_GPU").text;
  if (wanted == "real") {  // no probe: the caller's cuInit reports a failure, and `sanity` comes here once per case
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* cause = dlerror();
      return failure{ENODEV, format("no GPU answers: %s. %s", cause != nullptr ? cause : "libcuda.so.1 cannot be opened",
                                    kNoRealGpuAdvice)};
    }
    if (cu::is_simulated_gpu(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)))
      return failure{ENODEV,
                     format("no GPU answers: libcuda.so.1 is the simulated GPU (LD_LIBRARY_PATH). %s", kNoRealGpuAdvice)};
    g_choice = gpu_kind::real;
    return gpu_kind::real;
  }
  if (wanted != "sim") {
    const real_gpu_probe real = probe_real_gpu();
    if (real.usable) {
      remember(gpu_kind::real);
      return gpu_kind::real;
    }
    g_why_not_real = real.reason;
    if (real.is_simulated && dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      remember(gpu_kind::simulated);
      return gpu_kind::simulated;
    }
  }
  if (auto loaded = cu::load_simulated_gpu(); !loaded) {
    auto cause = loaded.error();
    if (!g_why_not_real.empty())
      cause.message = format("no GPU answers (%s) and %s", g_why_not_real.c_str(), cause.message.c_str());
    return cause;
  }
  remember(gpu_kind::simulated);
  return gpu_kind::simulated;
}

const std::string& why_not_real() { return g_why_not_real; }

void print_header_if_simulated() {
  static bool printed = false;
  if (printed || g_choice != gpu_kind::simulated) return;
  printed = true;
  std::printf("%s\n", kSimulatedHeader);
}

}  // namespace pl::tools
