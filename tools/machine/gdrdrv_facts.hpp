// SPDX-License-Identifier: Apache-2.0
// What a machine's files say about the gdrdrv kernel module: loaded, built, allowed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pl::tools {

struct gdrdrv_facts {
  std::string kernel_release;          // of the running kernel
  bool is_loaded = false;              // /sys/module/gdrdrv
  std::string version;                 // as the module says: "2.6", "2.6-peerlane"; empty: unknown
  std::optional<bool> is_persistent;   // pins keep freed memory; only a loaded module reports it
  std::vector<std::string> built_for;  // kernel releases that have a gdrdrv module installed
  bool is_secure_boot = false;         // the firmware checks signatures
  bool needs_signature = false;        // the kernel refuses unsigned modules (lockdown, sig_enforce, Secure Boot)

  bool is_built_for_this_kernel() const;
};

// Reads /proc, /sys and /lib/modules below `root` ("/" for this machine). Files that are absent or unreadable leave the
// defaults.
gdrdrv_facts read_gdrdrv_facts(const std::filesystem::path& root);

}  // namespace pl::tools
