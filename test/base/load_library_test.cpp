// SPDX-License-Identifier: Apache-2.0
#include "base/load_library.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

namespace pl {
namespace {

TEST(LoadLibrary, FindsWhatIsThereAndNamesWhatIsNot) {
  EXPECT_TRUE(load_library("libm.so.6", RTLD_NOW));
  const auto none = load_library("libpeerlane-there-is-none.so", RTLD_NOW);
  EXPECT_EQ(none.code(), ENOENT);
  EXPECT_NE(none.error().message.find("libpeerlane-there-is-none.so"), std::string::npos) << none.error().message;
}

TEST(LoadLibrary, WithoutDescriptorsItSaysSo) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto found = load_library("libpeerlane-there-is-none.so", RTLD_NOW);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(found.code(), EMFILE);
  EXPECT_NE(found.error().message.find("ulimit -n"), std::string::npos) << found.error().message;
}

}  // namespace
}  // namespace pl
