// SPDX-License-Identifier: Apache-2.0
#include "os/unforked_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

namespace pl {
namespace {

TEST(UnforkedPages, AreZeroedWholePages) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, (std::size_t{2} << 20) + 1}) {
    auto made = unforked_pages::make(bytes);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_GE(made->size_bytes(), bytes);
    EXPECT_EQ(made->size_bytes() % 4096, 0u);
    EXPECT_TRUE(
        std::all_of(made->data(), made->data() + made->size_bytes(), [](std::byte each) { return each == std::byte{}; }));
  }
}

TEST(UnforkedPages, TooManyAreAnError) {
  EXPECT_EQ(unforked_pages::make(SIZE_MAX).code(), ENOMEM);
  EXPECT_EQ(unforked_pages::make(std::size_t{1} << 60).code(), ENOMEM);
}

// What a child maps at the place of its parent's pages is the child's.
TEST(UnforkedPages, AChildThatDestroysThemUnmapsNothing) {
  std::optional<unforked_pages> pages(*unforked_pages::make(8192));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void* const own = mmap(pages->data(), pages->size_bytes(), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (own != pages->data()) _exit(1);  // inherited
    *static_cast<volatile int*>(own) = 7;
    pages.reset();
    _exit(*static_cast<volatile int*>(own) == 7 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace pl
