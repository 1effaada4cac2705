// SPDX-License-Identifier: Apache-2.0
// Import table slots of a loaded library, with lazy binding and with a table that is read-only after loading (RELRO): find,
// replace, chain. Method: fake_libcuda.cpp built both ways; a replaced slot must be reached by the library's own calls.
#include "rm/import_slot.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <thread>

namespace pl::rm {
namespace {

using ioctl_function = int (*)(int, unsigned long, ...);

std::atomic<void*> g_under_first{nullptr}, g_under_second{nullptr};
int g_first_calls = 0, g_second_calls = 0;

int first_hook(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  ++g_first_calls;
  return reinterpret_cast<ioctl_function>(g_under_first.load())(fd, request, argument);
}
int second_hook(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  ++g_second_calls;
  return reinterpret_cast<ioctl_function>(g_under_second.load())(fd, request, argument);
}

class import_slot : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    library_ = dlopen(GetParam(), RTLD_LAZY | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    call_ = reinterpret_cast<int (*)(int, unsigned long, void*)>(dlsym(library_, "fake_ioctl"));
    ASSERT_NE(call_, nullptr);
    g_first_calls = g_second_calls = 0;
  }
  void* library_ = nullptr;
  int (*call_)(int, unsigned long, void*) = nullptr;
};

TEST_P(import_slot, FoundReplacedAndChained) {
  auto slot = find_import_slot(library_, "ioctl");
  ASSERT_TRUE(slot) << slot.error().message;
  void* const original = **slot;
  ASSERT_TRUE(hook_import_slot(*slot, "ioctl", reinterpret_cast<void*>(&first_hook), g_under_first));
  // Lazy and unresolved, or bound: in both cases the function itself, not the resolver stub in the library.
  EXPECT_EQ(g_under_first.load(), dlsym(RTLD_DEFAULT, "ioctl"));
  errno = 0;
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(errno, EBADF) << "passed on to the kernel";
  EXPECT_EQ(g_first_calls, 1);
  EXPECT_EQ(**slot, reinterpret_cast<void*>(&first_hook)) << "the dynamic linker must not put its own answer there";
  // A second library of ours in the same process hooks the same slot.
  ASSERT_TRUE(hook_import_slot(*slot, "ioctl", reinterpret_cast<void*>(&second_hook), g_under_second));
  EXPECT_EQ(g_under_second.load(), reinterpret_cast<void*>(&first_hook));
  ASSERT_TRUE(hook_import_slot(*slot, "ioctl", reinterpret_cast<void*>(&second_hook), g_under_second));
  EXPECT_EQ(g_under_second.load(), reinterpret_cast<void*>(&first_hook)) << "a hook that leads to itself never returns";
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(g_second_calls, 1);
  EXPECT_EQ(g_first_calls, 2);
  ASSERT_TRUE(replace_import_slot(*slot, original));
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(g_second_calls, 1) << "taken out again";
}

// As two libraries of ours do when they are used for the first time at the same moment, each with a lock of its own: neither
// may find the page read-only under its hands, and both hooks must be in the chain afterwards.
TEST_P(import_slot, TwoLibrariesAtOnce) {
  auto slot = find_import_slot(library_, "ioctl");
  ASSERT_TRUE(slot);
  void* const libc = dlsym(RTLD_DEFAULT, "ioctl");
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(replace_import_slot(*slot, libc));
    g_first_calls = g_second_calls = 0;
    std::atomic<int> ready{0};
    const auto hook = [&](void* function, std::atomic<void*>& next) {
      ++ready;
      while (ready.load() < 2) {}
      EXPECT_TRUE(hook_import_slot(*slot, "ioctl", function, next));
    };
    std::thread other(hook, reinterpret_cast<void*>(&first_hook), std::ref(g_under_first));
    hook(reinterpret_cast<void*>(&second_hook), g_under_second);
    other.join();
    EXPECT_EQ(call_(-1, 1, nullptr), -1);
    ASSERT_EQ(g_first_calls, 1) << "round " << round;
    ASSERT_EQ(g_second_calls, 1) << "round " << round;
  }
  ASSERT_TRUE(replace_import_slot(*slot, libc));
}

TEST_P(import_slot, WhatIsNotImportedIsNotFound) {
  const auto slot = find_import_slot(library_, "no_library_imports_this");
  ASSERT_FALSE(slot);
  EXPECT_EQ(slot.code(), ENOENT);
  EXPECT_NE(slot.error().message.find("does not import no_library_imports_this"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(binding, import_slot, testing::Values(PL_FAKE_LAZY, PL_FAKE_RELRO),
                         [](const auto& one) { return one.index == 0 ? "lazy" : "relro"; });

}  // namespace
}  // namespace pl::rm
