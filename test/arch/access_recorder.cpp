// SPDX-License-Identifier: Apache-2.0
#include "test/arch/access_recorder.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace pl::arch::check {
namespace {

constexpr greg_t kTrapFlag = 0x100;
constexpr greg_t kFaultWasWrite = 0x2;  // of the page-fault error code
constexpr std::size_t kAccessesMax = 4096;

// All that the handlers use: fixed memory, set up before.
struct recorder_state {
  unsigned char* page = nullptr;
  unsigned char before[access_recorder::kPageBytes];
  access accesses[kAccessesMax];
  std::size_t count = 0;
  struct sigaction old_segv, old_trap;
};
recorder_state g_state;

void protect(int protection) {
  if (mprotect(g_state.page, access_recorder::kPageBytes, protection) != 0) _exit(99);
}

// memcpy and memcmp may be instrumented or use the page's bytes in ways that fault; these loops do not matter for time.
void on_fault(int, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const auto page = reinterpret_cast<std::uintptr_t>(g_state.page);
  auto* const machine = static_cast<ucontext_t*>(context);
  if (address < page || address >= page + access_recorder::kPageBytes || g_state.count == kAccessesMax) {
    sigaction(SIGSEGV, &g_state.old_segv, nullptr);  // not ours: fault again with the handler from before
    return;
  }
  protect(PROT_READ | PROT_WRITE);
  access& entry = g_state.accesses[g_state.count];
  entry = {(machine->uc_mcontext.gregs[REG_ERR] & kFaultWasWrite) != 0, address - page, 0};
  std::memcpy(g_state.before, g_state.page, access_recorder::kPageBytes);
  machine->uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
}

void on_step(int, siginfo_t*, void* context) {
  auto* const machine = static_cast<ucontext_t*>(context);
  machine->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  access& entry = g_state.accesses[g_state.count++];
  std::size_t first = access_recorder::kPageBytes, last = 0;
  for (std::size_t i = 0; i < access_recorder::kPageBytes; ++i) {
    if (g_state.page[i] == g_state.before[i]) continue;
    if (first == access_recorder::kPageBytes) first = i;
    last = i;
  }
  if (first != access_recorder::kPageBytes) {
    entry.offset = first;
    entry.bytes = last - first + 1;
  }
  protect(PROT_NONE);
}

void install(int number, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(number, &action, old) != 0) std::abort();
}

}  // namespace

access_recorder::access_recorder() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || g_state.page != nullptr) std::abort();
  g_state.page = static_cast<unsigned char*>(page);
}

access_recorder::~access_recorder() {
  munmap(g_state.page, kPageBytes);
  g_state.page = nullptr;
}

unsigned char* access_recorder::page() const { return g_state.page; }

std::vector<access> access_recorder::record(const std::function<void()>& code) {
  g_state.count = 0;
  install(SIGSEGV, on_fault, &g_state.old_segv);
  install(SIGTRAP, on_step, &g_state.old_trap);
  protect(PROT_NONE);
  code();
  protect(PROT_READ | PROT_WRITE);
  sigaction(SIGSEGV, &g_state.old_segv, nullptr);
  sigaction(SIGTRAP, &g_state.old_trap, nullptr);
  return {g_state.accesses, g_state.accesses + g_state.count};
}

bool access_recorder::works() {
  const pid_t child = fork();  // the attempt may end in a signal
  if (child == 0) {
    access_recorder recorder;
    auto* const word = reinterpret_cast<volatile std::uint32_t*>(recorder.page() + 8);
    const auto seen = recorder.record([word] { *word = 0x01010101; });
    _exit(seen.size() == 1 && seen[0].is_write && seen[0].offset == 8 && seen[0].bytes == 4 ? 0 : 1);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace pl::arch::check
