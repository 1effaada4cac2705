// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/caller_version.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

using namespace pl;
namespace fs = std::filesystem;

struct packages {
  packages() {
    std::string name = (fs::temp_directory_path() / "peerlane-nixl-XXXXXX").string();
    folder = mkdtemp(name.data());
  }
  ~packages() { fs::remove_all(folder); }
  void add(const std::string& name) const { fs::create_directories(folder / name); }
  std::string library(const std::string& below) const { return (folder / below / "libnixl.so").string(); }
  fs::path folder;
};

TEST(NixlCallerVersion, IsThatOfTheWheelAround) {
  const packages site;
  for (const char* one :
       {"nixl_cu12-1.5.1.dist-info", "nixl_cu13-1.4.0.dist-info", "nixl-1.3.0.dist-info", "numpy-2.0.dist-info"})
    site.add(one);
  EXPECT_EQ(nixl::wheel_version(site.library(".nixl_cu12.mesonpy.libs")), "1.5.1");
  EXPECT_EQ(nixl::wheel_version(site.library(".nixl_cu13.mesonpy.libs")), "1.4.0");
  EXPECT_EQ(nixl::wheel_version(site.library(".nixl_cu14.mesonpy.libs")), "");
  EXPECT_EQ(nixl::wheel_version("/nowhere/at/all/libnixl.so"), "");
  EXPECT_EQ(nixl::wheel_version("libnixl.so"), "");
}

TEST(NixlCallerVersion, OthersAreRefusedWithWhatToDo) {
  for (const char* good : {"1.0.0", "1.0.1", "1.4.0", "1.5.1", ""})
    EXPECT_TRUE(nixl::check_version(good, true, "libnixl.so")) << good;
  for (const char* bad : {"0.10.1", "1.6.0", "2.0.0", "banana"}) {
    const auto refused = nixl::check_version(bad, true, "/some/libnixl.so");
    ASSERT_EQ(refused.code(), ENOTSUP) << bad;
    EXPECT_NE(refused.error().message.find("/some/libnixl.so"), std::string::npos);
    EXPECT_NE(refused.error().message.find("pip install"), std::string::npos);
    EXPECT_NE(refused.error().message.find("PEERLANE_NIXL_FORCE=1"), std::string::npos);
  }
  const auto too_old = nixl::check_version("1.5.1", false, "libnixl.so");
  ASSERT_EQ(too_old.code(), ENOTSUP) << "a library without what the versions are known by";
  EXPECT_EQ(too_old.error().message.find("PEERLANE_NIXL_FORCE"), std::string::npos) << "which would not help";
}

TEST(NixlCallerVersion, CanBeForced) {
  setenv("PEERLANE_NIXL_FORCE", "1", 1);
  EXPECT_TRUE(nixl::check_version("9.0.0", true, "libnixl.so"));
  EXPECT_FALSE(nixl::check_version("9.0.0", false, "libnixl.so")) << "its functions stand elsewhere";
  unsetenv("PEERLANE_NIXL_FORCE");
}

}  // namespace
