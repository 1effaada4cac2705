// SPDX-License-Identifier: Apache-2.0
// What runs inside libcuda's frames asks for no memory and throws nothing. Method: an operator new that counts while the
// fake libcuda is on the stack, and an export of more objects than the listener usually has room for.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "rm/export_listener.hpp"

namespace {
int* g_depth = nullptr;
int g_inside = 0;
}  // namespace

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // GCC 12 at -O1 inlines one of the pair and not the other
#endif
void* operator new(std::size_t bytes) {
  if (g_depth != nullptr && *g_depth != 0) ++g_inside;
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace pl::rm {
namespace {

TEST(export_listener_memory, NothingIsAllocatedInLibcudasFrames) {
  cu::driver_table table;
  table.library = dlopen(PL_FAKE_LAZY, RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(table.library, nullptr) << dlerror();
  table.cuMemGetHandleForAddressRange =
      reinterpret_cast<decltype(table.cuMemGetHandleForAddressRange)>(dlsym(table.library, "fake_export"));
  int* const layout = static_cast<int*>(dlsym(table.library, "fake_layout"));
  g_depth = static_cast<int*>(dlsym(table.library, "fake_depth"));
  ASSERT_TRUE(layout != nullptr && g_depth != nullptr);
  for (const auto& [name, bytes] :
       {std::pair<int, std::uint64_t>{0, 0x200000}, {1, 0x200000}, {2, 0x200000}, {6, 300 * 65536}}) {
    *layout = name;
    const auto pieces = find_backing(table, 0x7f0000000000, bytes);
    EXPECT_TRUE(pieces) << (pieces ? "" : pieces.error().message);
    EXPECT_EQ(g_inside, 0) << "layout " << name;
  }
}

}  // namespace
}  // namespace pl::rm
