// SPDX-License-Identifier: Apache-2.0
// A job of some processes for tests of messages: forked before CUDA or UCX is touched, each with a messenger.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "messaging/bootstrap/local_bootstrap.hpp"
#include "messaging/messenger.hpp"
#include "test/support/sim_fixture.hpp"

// A child's checks: the answer of its body is the line that failed, told with the reason.
#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) return std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), __LINE__; \
  } while (0)
#define CHECK_OK(call)                                                                                                    \
  do {                                                                                                                    \
    if (auto&& done_ = (call); !done_)                                                                                    \
      return std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, done_.error().message.c_str()), __LINE__; \
  } while (0)

#if defined(__SANITIZE_THREAD__)
// UCX's thread has storage that the C library takes back when the thread ends, which ThreadSanitizer takes for a race.
extern "C" inline __attribute__((used, visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:_dl_deallocate_tls\n";
}
#endif

// There under AddressSanitizer; a child that ends by _exit would not be looked at otherwise.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace pl::messaging {

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kJobEndsInS = 110;  // some take 12 s of CPU time, beside other tests a minute
#else
constexpr unsigned kJobEndsInS = 60;
#endif
constexpr auto kTimeout = 20s;  // of a test for what must happen at once: never waited for on a good day

// Which device a rank uses.
enum class gpus { none, one_each, shared };

struct rank_context {
  int rank = 0;
  messaging::messenger* messenger = nullptr;
  messaging::bootstrap* group = nullptr;
};

inline messenger_options test_options() {
  auto out = messenger_options::from_environment();
  return out;
}

inline int run_rank(int rank, fork_bootstrap& sockets, gpus layout, const messenger_options& options,
                    const std::function<int(const rank_context&)>& body) {
  auto group = sockets.take(rank);
  std::optional<test::current_device> device;
  if (layout != gpus::none) device.emplace(layout == gpus::shared ? 0 : rank % 2);
  auto opened = messenger::open(layout == gpus::none ? nullptr : &test::simulated_cuda(), *group, options);
  CHECK_OK(opened);
  return body({rank, opened->get(), group.get()});
}

// Runs `body(rank, sockets)` in `size` processes. The number of those that did not answer 0; `killed` may die by a signal.
inline int fork_ranks(int size, const std::function<int(int, fork_bootstrap&)>& body, int killed = -1) {
  auto sockets = fork_bootstrap::make(size);
  if (!sockets) return size;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kJobEndsInS);  // a hang is a failure, not a hung test program
      const bool is_well = body(rank, *sockets) == 0;
      const bool has_leaks = __lsan_do_recoverable_leak_check != nullptr && __lsan_do_recoverable_leak_check() != 0;
      _exit(is_well && !has_leaks ? 0 : 1);
    }
    children.push_back(child);
  }
  sockets->close();
  int failures = 0;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    const bool is_reaped = waitpid(children[static_cast<std::size_t>(rank)], &status, 0) > 0;
    if (rank == killed && is_reaped && WIFSIGNALED(status)) continue;
    if (!is_reaped || status != 0) ++failures, std::fprintf(stderr, "rank %d: status %d\n", rank, status);
  }
  return failures;
}

// The same with a messenger each. `before` runs in each process before anything is opened.
inline int run_job(int size, gpus layout, const messenger_options& options,
                   const std::function<int(const rank_context&)>& body, int killed = -1,
                   const std::function<bool(int rank)>& before = {}) {
  return fork_ranks(
      size,
      [&](int rank, fork_bootstrap& sockets) {
        return !before || before(rank) ? run_rank(rank, sockets, layout, options, body) : __LINE__;
      },
      killed);
}

// Memory of either kind with its bytes.
class piece {
 public:
  piece(bool is_device, std::size_t bytes) : bytes_(bytes) {
    if (is_device) device_.emplace(bytes == 0 ? 1 : bytes);
    else host_.resize(bytes);
  }
  buffer all(memory_kind kind = memory_kind::detect) const { return part(0, bytes_, kind); }
  buffer part(std::size_t offset, std::size_t bytes, memory_kind kind = memory_kind::detect) const {
    return {address() + offset, bytes, kind};
  }
  std::uint64_t address() const { return device_ ? device_->pointer() : reinterpret_cast<std::uint64_t>(host_.data()); }
  void set(const std::vector<unsigned char>& bytes) {
    if (bytes.empty()) return;
    if (device_) test::set_device_bytes(device_->pointer(), bytes);
    else std::memcpy(host_.data(), bytes.data(), bytes.size());
  }
  std::vector<unsigned char> get(std::size_t bytes) const {
    if (bytes == 0) return {};
    if (device_) return test::device_bytes(device_->pointer(), bytes);
    return {host_.begin(), host_.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }

 private:
  std::size_t bytes_;
  std::optional<test::device_buffer> device_;
  std::vector<unsigned char> host_;
};

}  // namespace pl::messaging
