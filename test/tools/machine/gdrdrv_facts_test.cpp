// SPDX-License-Identifier: Apache-2.0
// Machines as their files show them, laid out in a folder.
#include "tools/machine/gdrdrv_facts.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace pl::tools {
namespace {

namespace fs = std::filesystem;

class gdrdrv_files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gdrdrv_facts.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << text;
  }
  gdrdrv_facts read() const { return read_gdrdrv_facts(root_); }

  fs::path root_;
};

TEST_F(gdrdrv_files, nothing_but_a_kernel) {
  const auto facts = read();
  EXPECT_EQ(facts.kernel_release, "6.1.0-56-amd64");
  EXPECT_FALSE(facts.is_loaded || facts.is_secure_boot || facts.needs_signature || facts.is_persistent.has_value());
  EXPECT_TRUE(facts.built_for.empty() && facts.version.empty());
  EXPECT_FALSE(facts.is_built_for_this_kernel());
}

TEST_F(gdrdrv_files, loaded_module) {
  write("sys/module/gdrdrv/version", "2.6-peerlane\n");
  write("proc/driver/gdrdrv/params",
        "Version: 2.6\nBuilt for NVIDIA driver flavor: opensource\nUse persistent mapping: yes\ndbg_enabled: "
        "0\ninfo_enabled: 0\n");
  auto facts = read();
  EXPECT_TRUE(facts.is_loaded);
  EXPECT_EQ(facts.version, "2.6-peerlane");
  EXPECT_EQ(facts.is_persistent, true);
  write("proc/driver/gdrdrv/params", "Version: 2.6\nUse persistent mapping: no\n");
  facts = read();
  EXPECT_EQ(facts.is_persistent, false);
}

TEST_F(gdrdrv_files, built_modules) {
  write("lib/modules/6.1.0-50-amd64/updates/dkms/gdrdrv.ko", "");
  write("lib/modules/6.12.1/extra/gdrdrv.ko.xz", "");
  write("lib/modules/6.1.0-56-amd64/kernel/other.ko", "");
  EXPECT_EQ(read().built_for, (std::vector<std::string>{"6.1.0-50-amd64", "6.12.1"}));
  EXPECT_FALSE(read().is_built_for_this_kernel());
  write("lib/modules/6.1.0-56-amd64/kernel/drivers/misc/gdrdrv.ko.zst", "");
  EXPECT_TRUE(read().is_built_for_this_kernel());
}

TEST_F(gdrdrv_files, signatures) {
  const std::string variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
  write(variable, std::string("\6\0\0\0\0", 5));
  EXPECT_FALSE(read().is_secure_boot || read().needs_signature);
  write(variable, std::string("\6\0\0\0\1", 5));
  EXPECT_TRUE(read().is_secure_boot && read().needs_signature);
  write(variable, "\6");  // cut off
  EXPECT_FALSE(read().needs_signature);
  write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
  EXPECT_FALSE(read().needs_signature);
  write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
  EXPECT_TRUE(read().needs_signature);
  write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
  write("sys/module/module/parameters/sig_enforce", "Y\n");
  EXPECT_TRUE(read().needs_signature);
}

}  // namespace
}  // namespace pl::tools
