// SPDX-License-Identifier: Apache-2.0
#include "gpu_choice.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "clock.hpp"
#include "driver_abi.hpp"
#include "env.hpp"
#include "text.hpp"

namespace pl::tools {
namespace {

// cuInit on an eight-GPU machine without the persistence daemon can take half a minute.
constexpr int kProbeTimeoutMs = 120'000;

enum probe_code : int { kAnswers = 0, kNoLibrary = 1, kNotADriver = 2, kInitFailed = 3, kNoDevice = 4, kSimulated = 5 };

// The simulated GPU's own symbol: it may also come through LD_LIBRARY_PATH, as any program can run on it that way.
bool is_simulated_library(void* library) { return dlsym(library, "peerlaneSimVersion") != nullptr; }

std::optional<gpu_kind> g_choice;
std::string g_why_not_real;

// Runs in the child; writes a sentence for the parent into `pipe_end` and exits.
[[noreturn]] void probe_in_child(int pipe_end) {
  const auto answer = [pipe_end](int code, const std::string& text) {
    [[maybe_unused]] const ssize_t written = write(pipe_end, text.data(), text.size());
    _exit(code);
  };
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    answer(kNoLibrary, format("no NVIDIA driver library: %s", why != nullptr ? why : "libcuda.so.1 cannot be opened"));
  }
  using init_call = int (*)(unsigned);
  using count_call = int (*)(int*);
  using name_call = int (*)(int, const char**);
  const auto init = reinterpret_cast<init_call>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<count_call>(dlsym(library, "cuDeviceGetCount"));
  const auto name = reinterpret_cast<name_call>(dlsym(library, "cuGetErrorName"));
  if (init == nullptr || count == nullptr) answer(kNotADriver, "libcuda.so.1 has no cuInit: it is not a driver library");
  if (const int rc = init(0); rc != cu::error_code::success) {
    const char* words = nullptr;
    if (name != nullptr) name(rc, &words);
    answer(kInitFailed, format("cuInit failed: %s (%d)", words != nullptr ? words : "CUDA error", rc));
  }
  int devices = 0;
  if (count(&devices) != cu::error_code::success || devices == 0) answer(kNoDevice, "the driver sees no GPU");
  answer(is_simulated_library(library) ? kSimulated : kAnswers, "");
  _exit(kAnswers);
}

}  // namespace

real_gpu_probe probe_real_gpu() {
  int ends[2];
  if (pipe(ends) != 0) return {false, false, false, format("pipe failed: %s", errno_text(errno).c_str())};
  std::fflush(nullptr);  // or the child would flush the parent's buffers a second time
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    // A crashing driver library must end the child by its signal, also under a sanitizer, which would exit with 1.
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(number, SIG_DFL);
    probe_in_child(ends[1]);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return {false, false, false, format("fork failed: %s", errno_text(errno).c_str())};
  }
  std::string reason;
  pollfd waiting{ends[0], POLLIN, 0};
  const bool finished = poll(&waiting, 1, kProbeTimeoutMs) > 0;
  if (finished) {
    char text[1024];
    for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;) reason.append(text, static_cast<std::size_t>(got));
  } else {
    kill(child, SIGKILL);
    reason = format("cuInit did not return within %d s", kProbeTimeoutMs / 1000);
  }
  close(ends[0]);
  int state = 0;
  waitpid(child, &state, 0);
  if (finished && WIFSIGNALED(state)) reason = format("the driver library crashed in cuInit (signal %d)", WTERMSIG(state));
  const int code = finished && WIFEXITED(state) ? WEXITSTATUS(state) : kInitFailed;
  if (code == kSimulated) return {true, false, true, "libcuda.so.1 is the simulated GPU (LD_LIBRARY_PATH)"};
  return {code != kNoLibrary, code == kAnswers, false, reason};
}

namespace {

status load_simulated() {
  const std::string path = program_folder() + "/sim/libcuda.so.1";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* why = dlerror();
  return failure{ENODEV, format("the simulated GPU cannot be loaded (%s): keep the folder sim/ beside the program, or build "
                                "with -DPEERLANE_SIM=ON",
                                why != nullptr ? why : path.c_str())};
}

void remember(gpu_kind kind) {
  g_choice = kind;
  setenv("PEERLANE_GPU", kind == gpu_kind::real ? "real" : "sim", 1);
}

}  // namespace

std::string program_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  std::string out(path, static_cast<std::size_t>(length));
  const auto slash = out.rfind('/');
  return slash == std::string::npos ? "." : out.substr(0, slash);
}

result<gpu_kind> choose_gpu() {
  if (g_choice) return *g_choice;
  const std::string wanted = env_read("PEERLANE_GPU").text;
  if (wanted == "real") {  // no probe: the caller's cuInit will tell, and `sanity` comes here once per case
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* why = dlerror();
      return failure{ENODEV, format("no GPU answers: %s. %s", why != nullptr ? why : "libcuda.so.1 cannot be opened",
                                    kNoRealGpuAdvice)};
    }
    if (is_simulated_library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)))
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
  if (auto loaded = load_simulated(); !loaded) {
    auto why = loaded.error();
    if (!g_why_not_real.empty())
      why.message = format("no GPU answers (%s) and %s", g_why_not_real.c_str(), why.message.c_str());
    return why;
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
