// SPDX-License-Identifier: Apache-2.0
// peerlane/device.cuh compiles by NVRTC, which has no headers of its own, as C++17 for each architecture that we build for.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace {

using program_t = void*;

template <class Function>
Function find(void* library, const char* name) {
  void* const found = dlsym(library, name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function>(found);
}

TEST(device_header, CompilesByNvrtc) {
  const std::string path = PL_TEST_NVRTC;
  if (path.empty()) GTEST_SKIP() << "the configuration found no libnvrtc beside nvcc";
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto create = find<int (*)(program_t*, const char*, const char*, int, const char* const*, const char* const*)>(
      library, "nvrtcCreateProgram");
  const auto compile = find<int (*)(program_t, int, const char* const*)>(library, "nvrtcCompileProgram");
  const auto log_bytes = find<int (*)(program_t, std::size_t*)>(library, "nvrtcGetProgramLogSize");
  const auto read_log = find<int (*)(program_t, char*)>(library, "nvrtcGetProgramLog");
  const auto destroy = find<int (*)(program_t*)>(library, "nvrtcDestroyProgram");
  constexpr const char* kSource = R"(
#include <peerlane/device.cuh>
extern "C" __global__ void use(peerlane_device_ring ring, peerlane_device_window to, peerlane_device_window from, long long* out) {
  namespace pd = peerlane::device;
  out[0] = pd::put(ring, to, 0, from, 0, 64) + pd::get(ring, from, 0, to, 0, 64) + pd::put_each(ring, to, 0, from, 0, 64);
  out[1] = pd::put_signal(ring, to, 0, from, 0, 64, to, 64, 1) + pd::signal(ring, to, 0, 1) + pd::fence(ring);
  out[2] = pd::wait(ring, out[0]) + pd::quiet(ring) + pd::wait_signal(to, 0, 1, 1000);
  out[3] = pd::put_warp(ring, to, 0, from, 0, 64) + pd::put_signal_warp(ring, to, 0, from, 0, 64, to, 64, 1) +
           pd::quiet_warp(ring) + pd::wait_signal_warp(to, 0, 1, 1000);
  out[4] = pd::put_block(ring, to, 0, from, 0, 64) + pd::put_signal_block(ring, to, 0, from, 0, 64, to, 64, 1) +
           pd::quiet_block(ring) + pd::wait_signal_block(to, 0, 1, 1000);
  pd::owned_ring mine;
  out[5] = pd::own(ring, mine) + pd::put(mine, to, 0, from, 0, 64) + pd::quiet(mine);
  pd::give_back(mine);
}
)";
  constexpr const char* kInclude = "-I" PL_TEST_INCLUDE;
  for (const char* const architecture : {"--gpu-architecture=sm_80", "--gpu-architecture=sm_90"}) {
    program_t program = nullptr;
    ASSERT_EQ(create(&program, kSource, "use.cu", 0, nullptr, nullptr), 0);
    const char* const options[] = {architecture, "--std=c++17", kInclude};
    const int code = compile(program, 3, options);
    std::size_t bytes = 0;
    log_bytes(program, &bytes);
    std::string log(bytes, '\0');
    read_log(program, log.data());
    EXPECT_EQ(code, 0) << architecture << ": " << log;
    destroy(&program);
  }
}

}  // namespace
