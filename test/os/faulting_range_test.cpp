// SPDX-License-Identifier: Apache-2.0
// What is left of a mapping that its user forgot. Each test is a child: what it leaves would stay in the program.
#include "os/faulting_range.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>

namespace pl {
namespace {

constexpr std::size_t kBytes = 64 << 10;

template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGBUS, SIG_DFL);  // a sanitizer's handler would make an ordinary exit of it
    std::signal(SIGSEGV, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

char* mapped() {
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? static_cast<char*>(memory) : nullptr;
}

int ranges_left() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("peerlane-forgotten") != std::string::npos;
  return count;
}

bool is_hole(void* memory) {
  unsigned char pages[kBytes / 4096];
  return mincore(memory, kBytes, pages) != 0 && errno == ENOMEM;
}

TEST(FaultingRange, EveryAccessRaisesSigbus) {
  for (const bool writes : {false, true}) {
    for (const std::size_t offset : {std::size_t{0}, kBytes / 2, kBytes - 1})
      EXPECT_EQ(in_child([&] {
                  volatile char* const memory = mapped();
                  memory[offset] = 1;
                  leave_faulting_range(real_device_io(), const_cast<char*>(memory), kBytes);
                  if (writes) memory[offset] = 2;
                  return memory[offset] == 1 ? 1 : 2;
                }),
                1000 + SIGBUS);
  }
}

TEST(FaultingRange, NoDescriptorStaysAndErrnoIsKept) {
  EXPECT_EQ(in_child([] {
              char* const memory = mapped();
              const int next = dup(0);
              close(next);
              errno = 4242;
              leave_faulting_range(real_device_io(), memory, kBytes);
              if (errno != 4242) return 1;
              return dup(0) == next && ranges_left() == 1 ? 0 : 2;
            }),
            0);
}

TEST(FaultingRange, NoMoreThanItsNumber) {
  EXPECT_EQ(in_child([] {
              char* last = nullptr;
              for (int i = 0; i < kMaxFaultingRanges + 100; ++i) {
                last = mapped();
                if (last == nullptr) return 1;
                leave_faulting_range(real_device_io(), last, kBytes);
              }
              if (ranges_left() != kMaxFaultingRanges) return 2;
              return is_hole(last) ? 0 : 3;
            }),
            0);
}

TEST(FaultingRange, IsAHoleWhereNoDescriptorIsLeft) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects through a pipe, which takes descriptors";
#endif
  EXPECT_EQ(in_child([] {
              char* const memory = mapped();
              const int next = dup(0);
              close(next);
              const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
              if (setrlimit(RLIMIT_NOFILE, &none) != 0) return 1;
              leave_faulting_range(real_device_io(), memory, kBytes);
              return is_hole(memory) ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace pl
