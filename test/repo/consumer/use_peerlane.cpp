// SPDX-License-Identifier: Apache-2.0
// Knows the C++ API and nothing else. Works without a GPU: open() then says why not.
#include <cstdio>
#include <peerlane/peerlane.hpp>

int main() {
  int major = -1, minor = -1;
  peerlane_get_version(&major, &minor);
  if (major != PEERLANE_VERSION_MAJOR || minor != PEERLANE_VERSION_MINOR) return 1;
  const auto session = peerlane::session::open();
  if (!session && session.error().message.empty()) return 2;
  std::printf("peerlane %d.%d, %s\n", major, minor, session ? session->backend_name() : session.error().message.c_str());
}
