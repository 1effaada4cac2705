// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpu_probe.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.hpp"
#include "cuda/driver_abi.hpp"
#include "cuda/simulated_gpu.hpp"

namespace pl::cu {
namespace {

// cuInit on an eight-GPU machine without the persistence daemon can take half a minute.
constexpr int kProbeTimeoutMs = 120'000;

enum probe_code : int { kAnswers = 0, kNoLibrary = 1, kNotADriver = 2, kInitFailed = 3, kNoDevice = 4, kSimulated = 5 };

// Runs in the child; writes the code and a sentence for the parent into `pipe_end` and exits. The exit status is not used:
// it is lost where SIGCHLD is ignored.
[[noreturn]] void probe_in_child(int pipe_end) {
  const auto answer = [pipe_end](int code, const std::string& text) {
    const std::string message = std::string(1, static_cast<char>(code)) + text;
    [[maybe_unused]] const ssize_t written = write(pipe_end, message.data(), message.size());
    _exit(0);
  };
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    answer(kNoLibrary, format("no NVIDIA driver library: %s", cause != nullptr ? cause : "libcuda.so.1 cannot be opened"));
  }
  using init_call = int (*)(unsigned);
  using count_call = int (*)(int*);
  using name_call = int (*)(int, const char**);
  const auto init = reinterpret_cast<init_call>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<count_call>(dlsym(library, "cuDeviceGetCount"));
  const auto name = reinterpret_cast<name_call>(dlsym(library, "cuGetErrorName"));
  if (init == nullptr || count == nullptr) answer(kNotADriver, "libcuda.so.1 has no cuInit: it is not a driver library");
  if (const int rc = init(0); rc != error_code::success) {
    const char* words = nullptr;
    if (name != nullptr) name(rc, &words);
    answer(kInitFailed, format("cuInit failed: %s (%d)", words != nullptr ? words : "CUDA error", rc));
  }
  int devices = 0;
  if (count(&devices) != error_code::success || devices == 0) answer(kNoDevice, "the driver sees no GPU");
  answer(is_simulated_gpu(library) ? kSimulated : kAnswers, "");
  _exit(0);
}

}  // namespace

real_gpu_probe probe_real_gpu() {
  int ends[2];
  // Another thread may start a program meanwhile, which would keep the end of writing open.
  if (pipe2(ends, O_CLOEXEC) != 0) return {false, false, false, format("pipe failed: %s", errno_text(errno).c_str())};
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
  std::string message;
  pollfd waiting{ends[0], POLLIN, 0};
  int ready = 0;
  do ready = poll(&waiting, 1, kProbeTimeoutMs);
  while (ready < 0 && errno == EINTR);
  const bool finished = ready > 0;
  if (finished) {
    char text[1024];
    for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;) message.append(text, static_cast<std::size_t>(got));
  } else {
    kill(child, SIGKILL);
  }
  close(ends[0]);
  int state = 0;
  const bool has_state = waitpid(child, &state, 0) == child;
  if (!finished) return {true, false, false, format("cuInit did not return within %d s", kProbeTimeoutMs / 1000)};
  if (message.empty())
    return {true, false, false,
            has_state && WIFSIGNALED(state) ? format("the driver library crashed in cuInit (signal %d)", WTERMSIG(state))
                                            : "the driver library ended the process in cuInit"};
  const int code = message[0];
  const std::string reason = message.substr(1);
  if (code == kSimulated) return {true, false, true, "libcuda.so.1 is the simulated GPU (LD_LIBRARY_PATH)"};
  return {code != kNoLibrary, code == kAnswers, false, reason};
}

}  // namespace pl::cu
