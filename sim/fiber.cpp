// SPDX-License-Identifier: Apache-2.0
#include "sim/fiber.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

extern "C" {
// Saves the callee-saved registers on the current stack, its pointer in *save, and continues on the stack `load`.
__attribute__((visibility("hidden"))) void pl_sim_switch_stack(void** save, void* load);
}

#if defined(__x86_64__)
asm(R"(
  .text
  .p2align 4
  .hidden pl_sim_switch_stack
  .globl pl_sim_switch_stack
  .type pl_sim_switch_stack, @function
pl_sim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size pl_sim_switch_stack, . - pl_sim_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .p2align 4
  .hidden pl_sim_switch_stack
  .globl pl_sim_switch_stack
  .type pl_sim_switch_stack, %function
pl_sim_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size pl_sim_switch_stack, . - pl_sim_switch_stack
)");
#else
#error "the simulated GPU's fibers need a stack switch for this processor"
#endif

namespace pl::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = 256u << 10;  // instrumented frames are several times larger
#else
constexpr std::size_t kStackBytes = 64u << 10;
#endif
constexpr unsigned kColours = 16;
constexpr std::size_t kColourBytes = 256;
std::atomic<unsigned> g_next_colour{0};
constexpr std::uint64_t kCanary = 0x50656572'6c616e65u;

thread_local fiber* t_entering [[gnu::tls_model("initial-exec")]] = nullptr;

}  // namespace

// Stacks begin at different places in their first page: at the same one, those of a block would all compete for the few
// lines of one set of the cache.
fiber::fiber() : colour_bytes_(g_next_colour.fetch_add(1, std::memory_order_relaxed) % kColours * kColourBytes) {
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(stack);
  std::memcpy(stack_, &kCanary, sizeof kCanary);
#if defined(__SANITIZE_THREAD__)
  tsan_own_ = __tsan_create_fiber(0);
#endif
}

fiber::~fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_own_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_,
                              kStackBytes);  // frames of an abandoned run leave red zones to whoever gets the addresses next
#endif
  munmap(stack_, kStackBytes);
}

void fiber::start(function run, void* argument) {
  run_ = run;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);  // frames abandoned by an earlier run leave their red zones
  asan_own_ = nullptr;
#endif
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes - colour_bytes_);
#if defined(__x86_64__)
  // Six saved registers, the "return" into enter(), and one slot that gives enter() the alignment of a called function.
  own_sp_ = top - 8;
  std::memset(own_sp_, 0, 64);
  top[-2] = reinterpret_cast<void*>(&fiber::enter);
#else
  own_sp_ = top - 20;
  std::memset(own_sp_, 0, 160);
  top[-20 + 11] = reinterpret_cast<void*>(&fiber::enter);  // x30
#endif
}

void fiber::enter() {
  fiber* const self = t_entering;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_stack_bytes_);
#endif
  self->run_(self->argument_);
  std::abort();  // run() ends by leave(true)
}

void fiber::resume() {
  t_entering = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&asan_scheduler_, stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_scheduler_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_own_, 0);
#endif
  pl_sim_switch_stack(&scheduler_sp_, own_sp_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_scheduler_, nullptr, nullptr);
#endif
}

void fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &asan_own_, scheduler_stack_, scheduler_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_scheduler_, 0);
#endif
  pl_sim_switch_stack(&own_sp_, scheduler_sp_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_own_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

bool fiber::is_stack_intact() const { return std::memcmp(stack_, &kCanary, sizeof kCanary) == 0; }

}  // namespace pl::sim
