// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/gdrdrv_facts.hpp"

#include <algorithm>

#include "base/whole_file.hpp"

namespace pl::tools {
namespace {

namespace fs = std::filesystem;

// Where DKMS, distributions, vendors' packages and `make modules_install` put modules, below /lib/modules/<release>.
constexpr const char* kModuleFolders[] = {"updates/dkms", "updates",      "extra",
                                          "extra/gdrdrv", "weak-updates", "kernel/drivers/misc"};
constexpr const char* kModuleNames[] = {"gdrdrv.ko", "gdrdrv.ko.xz", "gdrdrv.ko.zst", "gdrdrv.ko.gz"};
// The variable of the UEFI specification: four bytes of attributes, then one that is 1 if Secure Boot is on.
constexpr const char* kSecureBoot = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
constexpr std::size_t kSecureBootByte = 4;

std::string text_of(const fs::path& file) { return file_text_or_empty(file.string()); }

std::string line_of(const fs::path& file) {
  const std::string text = text_of(file);
  return text.substr(0, text.find('\n'));
}

bool has_module(const fs::path& release) {
  std::error_code ignored;
  for (const char* folder : kModuleFolders)
    for (const char* name : kModuleNames)
      if (fs::exists(release / folder / name, ignored)) return true;
  return false;
}

std::vector<std::string> releases_with_module(const fs::path& modules) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(modules, ignored))
    if (has_module(entry.path())) found.push_back(entry.path().filename());
  std::sort(found.begin(), found.end());
  return found;
}

bool is_secure_boot(const fs::path& root) {
  const std::string value = text_of(root / kSecureBoot);
  return value.size() > kSecureBootByte && value[kSecureBootByte] == 1;
}

// "none [integrity] confidentiality": the one in brackets is in force.
bool is_locked_down(const fs::path& root) {
  const std::string text = text_of(root / "sys/kernel/security/lockdown");
  return text.find("[integrity]") != std::string::npos || text.find("[confidentiality]") != std::string::npos;
}

}  // namespace

bool gdrdrv_facts::is_built_for_this_kernel() const {
  return std::find(built_for.begin(), built_for.end(), kernel_release) != built_for.end();
}

gdrdrv_facts read_gdrdrv_facts(const fs::path& root) {
  gdrdrv_facts facts;
  std::error_code ignored;
  facts.kernel_release = line_of(root / "proc/sys/kernel/osrelease");
  facts.is_loaded = fs::exists(root / "sys/module/gdrdrv", ignored);
  facts.version = line_of(root / "sys/module/gdrdrv/version");
  const std::string parameters = text_of(root / "proc/driver/gdrdrv/params");
  if (const auto found = parameters.find("Use persistent mapping: "); found != std::string::npos)
    facts.is_persistent = parameters.compare(found, 27, "Use persistent mapping: yes") == 0;
  facts.built_for = releases_with_module(root / "lib/modules");
  facts.is_secure_boot = is_secure_boot(root);
  facts.needs_signature =
      facts.is_secure_boot || is_locked_down(root) || line_of(root / "sys/module/module/parameters/sig_enforce") == "Y";
  return facts;
}

}  // namespace pl::tools
