// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver_table.hpp"

#include <dlfcn.h>
#include <sys/resource.h>

#include <atomic>
#include <mutex>

#include "base/env.hpp"
#include "base/load_library.hpp"
#include "base/text.hpp"
#include "cuda/gpu_probe.hpp"
#include "cuda/simulated_gpu.hpp"

namespace pl::cu {
namespace {

const driver_table* g_test_table = nullptr;

failure no_library(const failure& reason) {
  if (reason.code != ENOENT) return reason;
  return {ENOSYS, format("libcuda.so.1 cannot be opened (%s): install the NVIDIA driver's user-space library, "
                         "or set PEERLANE_GPU=sim for the simulated GPU",
                         reason.message.c_str())};
}

// The library that the application has loaded, if it is what PEERLANE_GPU asks for.
result<void*> take_loaded(void* library, const std::string& wanted) {
  const bool is_simulated = is_simulated_gpu(library);
  if (wanted == "real" && is_simulated)
    return failure{ENODEV,
                   format("PEERLANE_GPU=real, but this program's libcuda.so.1 is the simulated GPU (%s): take its folder "
                          "out of LD_LIBRARY_PATH",
                          library_file(library, "cuInit").c_str())};
  if (wanted == "sim" && !is_simulated)
    return failure{ENODEV,
                   format("PEERLANE_GPU=sim, but this program has already loaded %s: start it with the simulated GPU's "
                          "folder (%s) first in LD_LIBRARY_PATH, or unset PEERLANE_GPU",
                          library_file(library, "cuInit").c_str(), simulated_gpu_folder().c_str())};
  return library;
}

// Chooses like the `peerlane` program with one exception: only an explicit "auto" may select the simulated GPU, so that no
// production program does so unasked.
result<void*> open_library() {
  const auto wanted = env_read("PEERLANE_GPU");
  // An application's own libcuda first: pointers are only meaningful to the library that made them.
  if (void* const loaded = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) return take_loaded(loaded, wanted.text);
  if (wanted.text == "sim") return load_simulated_gpu();
  if (wanted.is_set && wanted.text == "auto") {
    const auto probe = probe_real_gpu();
    if (!probe.usable && !probe.is_simulated) {
      auto loaded = load_simulated_gpu();
      if (loaded) return loaded;
      return failure{ENODEV, format("no GPU answers (%s) and %s", probe.reason.c_str(), loaded.error().message.c_str())};
    }
  }
  const auto library = load_library("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) return no_library(library.error());
  return take_loaded(*library, wanted.text);
}

result<const driver_table*> open_driver() {
  const auto opened = open_library();
  if (!opened) return opened.error();
  void* const library = *opened;
  static driver_table table;
  table.library = library;
#define PL_CUDA_LOAD(name, params) table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name));
  PL_CUDA_DRIVER_FUNCTIONS(PL_CUDA_LOAD)
#undef PL_CUDA_LOAD
  table.is_simulated = is_simulated_gpu(library);
  if (table.cuInit == nullptr || table.cuDriverGetVersion == nullptr || table.cuPointerGetAttribute == nullptr)
    return failure{
        ENOSYS, "libcuda.so.1 lacks cuInit, cuDriverGetVersion or cuPointerGetAttribute: it is not a CUDA driver library"};
  if (const result_t rc = table.cuDriverGetVersion(&table.driver_version); rc != error_code::success)
    return failure{
        ENOSYS,
        format("cuDriverGetVersion failed with CUDA error %d%s", rc,
               rc == error_code::stub_library ? ": this libcuda.so.1 is the toolkit's link stub, not a driver" : "")};
  return &table;
}

}  // namespace

result<const driver_table*> driver() {
  if (g_test_table != nullptr) return g_test_table;
  static std::mutex mutex;
  static std::atomic<const driver_table*> found{nullptr};
  if (const auto* known = found.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(mutex);
  if (const auto* known = found.load(std::memory_order_acquire)) return known;
  auto opened = open_driver();  // failures are not cached: the application may load libcuda later
  if (opened) found.store(*opened, std::memory_order_release);
  return opened;
}

void set_driver_for_tests(const driver_table* table) { g_test_table = table; }

status initialize(const driver_table& cuda) {
  const result_t rc = cuda.cuInit(0);  // idempotent and cheap after the first call
  if (rc == error_code::success) return {};
  auto cause = make_error(cuda, rc, "cuInit");
  if (rc == error_code::no_device || rc == error_code::device_unavailable || rc == error_code::unknown) cause.code = ENODEV;
  if (!cuda.is_simulated) cause.message += format(" (%s)", kNoRealGpuAdvice);
  return cause;
}

std::string error_text(const driver_table& cuda, result_t code) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuda.cuGetErrorName != nullptr) cuda.cuGetErrorName(code, &name);
  if (cuda.cuGetErrorString != nullptr) cuda.cuGetErrorString(code, &text);
  if (name == nullptr) return format("CUDA error %d", code);
  return format("%s (%s)", name, text != nullptr ? text : "no description");
}

int to_errno(result_t code) {
  switch (code) {
    case error_code::success:
      return 0;
    case error_code::out_of_memory:
      return ENOMEM;
    case error_code::no_device:
    case error_code::invalid_device:
    case error_code::device_unavailable:
      return ENODEV;
    case error_code::not_supported:
      return ENOTSUP;
    case error_code::not_permitted:
      return EPERM;
    case error_code::not_ready:
    case error_code::timeout:
    case error_code::launch_timeout:
      return ETIMEDOUT;
    case error_code::invalid_value:
    case error_code::invalid_context:
    case error_code::invalid_handle:
    case error_code::context_is_destroyed:
    case error_code::not_initialized:
      return EINVAL;
    default:
      return EIO;
  }
}

namespace {

// CUDA says "OS call failed" where it may open no further file: a context takes it some fifty of them, two GPUs about a
// hundred.
std::string hint_about_files() {
  constexpr rlim_t kEnough = 256;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kEnough) return {};
  return format("; this process may open %llu files only: raise ulimit -n", static_cast<unsigned long long>(files.rlim_cur));
}

// CUDA reserves addresses for all memory of the host and its GPUs, and says "out of memory" if it gets none.
std::string hint_about_memory() {
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY)
    return ": GPU memory is used up, or what the host can pin; nvidia-smi shows which processes use the GPU's";
  return format("; this process may use %s of addresses only, and CUDA reserves more: raise ulimit -v",
                format_size(space.rlim_cur).c_str());
}

std::string hint_of(result_t code) {
  if (code == error_code::operating_system) return hint_about_files();
  return code == error_code::out_of_memory ? hint_about_memory() : std::string();
}

}  // namespace

failure make_error(const driver_table& cuda, result_t code, const std::string& operation) {
  return failure{to_errno(code),
                 format("%s failed: %s%s", operation.c_str(), error_text(cuda, code).c_str(), hint_of(code).c_str())};
}

}  // namespace pl::cu
