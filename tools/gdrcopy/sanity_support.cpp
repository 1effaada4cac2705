// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

constexpr int kBatonTimeoutMs = 20'000;
constexpr int kChildWaived = 2;

sigjmp_buf g_fault_return;
void on_fault(int) { siglongjmp(g_fault_return, 1); }

}  // namespace

std::vector<sanity_case> all_sanity_cases() {
  std::vector<sanity_case> all;
  for (const auto part : {stock_basic_cases(), stock_data_cases(), stock_invalidation_cases(), own_copy_cases(),
                          own_refusal_cases(), own_system_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<unsigned char> case_fixture::device_bytes(cu::device_ptr pointer, std::size_t bytes) const {
  std::vector<unsigned char> out(bytes);
  gpu.check(gpu.cuda().cuMemcpyDtoH_v2(out.data(), pointer, bytes), "cuMemcpyDtoH");
  return out;
}

void case_fixture::write_device(cu::device_ptr pointer, const void* host, std::size_t bytes) const {
  gpu.check(gpu.cuda().cuMemcpyHtoD_v2(pointer, host, bytes), "cuMemcpyHtoD");
  gpu.synchronize();
}

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> out(bytes);
  std::uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : out) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return out;
}

std::size_t first_difference(std::span<const unsigned char> a, std::span<const unsigned char> b) {
  const auto [difference, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return difference == a.end() ? std::string::npos : static_cast<std::size_t>(difference - a.begin());
}

void require_equal(std::span<const unsigned char> seen, std::span<const unsigned char> wanted,
                   const std::string& description) {
  const std::size_t offset = first_difference(seen, wanted);
  if (offset != std::string::npos)
    throw case_failed(format("%s: byte %zu of %zu is 0x%02x instead of 0x%02x", description.c_str(), offset, wanted.size(),
                             seen[offset], wanted[offset]));
}

bool read_faults(const volatile void* address, std::uint32_t* value) {
  struct sigaction action {
  }, old_bus{}, old_segv{};
  action.sa_handler = on_fault;
  sigaction(SIGBUS, &action, &old_bus);
  sigaction(SIGSEGV, &action, &old_segv);
  volatile bool faulted = true;  // survives the jump back
  if (sigsetjmp(g_fault_return, 1) == 0) {
    *value = *static_cast<const volatile std::uint32_t*>(address);
    faulted = false;
  }
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaction(SIGSEGV, &old_segv, nullptr);
  return faulted;
}

// ---- processes -------------------------------------------------------------------------------------------------------

child_process::child_process(const std::function<void()>& body) {
  int ends[2];
  PL_REQUIRE(pipe(ends) == 0, "pipe failed");
  std::fflush(nullptr);
  pid_ = fork();
  PL_REQUIRE(pid_ >= 0, "fork failed");
  if (pid_ != 0) {
    close(ends[1]);
    text_end_ = ends[0];
    return;
  }
  close(ends[0]);
  const auto leave = [&](int code, const char* text) {
    [[maybe_unused]] const auto wrote = write(ends[1], text, std::string_view(text).size());
    _exit(code);  // no destructors of the parent's objects, no atexit of the driver library
  };
  try {
    body();
  } catch (const case_waived& reason) { leave(kChildWaived, reason.what()); } catch (const std::exception& reason) {
    leave(1, reason.what());
  }
  leave(0, "");
}

child_process::~child_process() {
  if (pid_ > 0) kill_nine();
}

void child_process::kill_nine() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  close(text_end_);
}

void child_process::finish() {
  std::string text;
  char part[512];
  for (ssize_t got; (got = read(text_end_, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(got));
  close(text_end_);
  int state = 0;
  waitpid(pid_, &state, 0);
  pid_ = -1;
  if (WIFEXITED(state) && WEXITSTATUS(state) == kChildWaived) throw case_waived(text);
  if (WIFSIGNALED(state)) throw case_failed(format("the child process died of signal %d", WTERMSIG(state)));
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) throw case_failed("in the child process: " + text);
}

process_pipe::process_pipe() { PL_REQUIRE(pipe(ends_) == 0, "pipe failed"); }
process_pipe::~process_pipe() { close(ends_[0]), close(ends_[1]); }

void process_pipe::send_bytes(const void* data, std::size_t bytes) {
  PL_REQUIRE(write(ends_[1], data, bytes) == static_cast<ssize_t>(bytes), "a pipe between parent and child broke");
}

void process_pipe::receive_bytes(void* data, std::size_t bytes) {
  pollfd waiting{ends_[0], POLLIN, 0};
  PL_REQUIRE(poll(&waiting, 1, kBatonTimeoutMs) == 1, "the other process did not answer within %d s",
             kBatonTimeoutMs / 1000);
  PL_REQUIRE(read(ends_[0], data, bytes) == static_cast<ssize_t>(bytes), "a pipe between parent and child broke");
}

}  // namespace pl::tools
