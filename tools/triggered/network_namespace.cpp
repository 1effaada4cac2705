// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/network_namespace.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>

#include "base/text.hpp"
#include "os/device_io.hpp"
#include "os/unique_fd.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {

void enter_network_namespace(const std::string& name) {
  const std::string path = name.find('/') == std::string::npos ? "/run/netns/" + name : name;
  const auto fail = [&](const char* step) {
    throw tools::tool_failure(format("--netns %s: %s: %s. Make both with scripts/two_hosts.sh, as root", name.c_str(), step,
                                     errno_text(errno).c_str()));
  };
  const unique_fd space(real_device_io(), open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space) fail(("opening " + path).c_str());
  if (setns(space.get(), CLONE_NEWNET) != 0) fail("entering it");
  // UCX looks for interfaces in sysfs, which shows those of the namespace that mounted it.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("a mount namespace");
  if (mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) fail("mounting its sysfs");
}

}  // namespace pl::async
