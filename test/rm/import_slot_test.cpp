// SPDX-License-Identifier: Apache-2.0
// Import table slots of a loaded library, with lazy binding and with a table that is read-only after loading (RELRO): find,
// replace, chain. Method: fake_libcuda.cpp built both ways; a replaced slot must be reached by the library's own calls.
#include "import_slot.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdarg>

namespace pl::rm {
namespace {

using ioctl_function = int (*)(int, unsigned long, ...);

ioctl_function g_under_first = nullptr, g_under_second = nullptr;
int g_first_calls = 0, g_second_calls = 0;

int first_hook(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  ++g_first_calls;
  return g_under_first(fd, request, argument);
}
int second_hook(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  ++g_second_calls;
  return g_under_second(fd, request, argument);
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
  g_under_first = reinterpret_cast<ioctl_function>(current_target(*slot, "ioctl"));
  // Lazy and unresolved, or bound: in both cases the function itself, not the resolver stub in the library.
  EXPECT_EQ(reinterpret_cast<void*>(g_under_first), dlsym(RTLD_DEFAULT, "ioctl"));
  ASSERT_TRUE(replace_import_slot(*slot, reinterpret_cast<void*>(&first_hook)));
  errno = 0;
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(errno, EBADF) << "passed on to the kernel";
  EXPECT_EQ(g_first_calls, 1);
  EXPECT_EQ(**slot, reinterpret_cast<void*>(&first_hook)) << "the dynamic linker must not put its own answer there";
  // A second library of ours in the same process hooks the same slot.
  g_under_second = reinterpret_cast<ioctl_function>(current_target(*slot, "ioctl"));
  EXPECT_EQ(g_under_second, &first_hook);
  ASSERT_TRUE(replace_import_slot(*slot, reinterpret_cast<void*>(&second_hook)));
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(g_second_calls, 1);
  EXPECT_EQ(g_first_calls, 2);
  ASSERT_TRUE(replace_import_slot(*slot, original));
  EXPECT_EQ(call_(-1, 1, nullptr), -1);
  EXPECT_EQ(g_second_calls, 1) << "taken out again";
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
