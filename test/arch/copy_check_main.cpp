// SPDX-License-Identifier: Apache-2.0
// The checker as a program of its own, for CPUs that GoogleTest is not installed for (arm64_check.sh).
//     copy_check [size_step [host_step [expected write+read names]]]
// Exit status 0: every implementation of this CPU keeps its promises, and the dispatcher chose the expected ones.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "arch/copy_routines.hpp"
#include "test/arch/copy_checker.hpp"

namespace {

using namespace pl::arch;

int g_failures = 0;

void report(const char* name, const char* check, const std::string& reason) {
  std::printf("%s %s.%s%s%s\n", reason.empty() ? "ok  " : "FAIL", name, check, reason.empty() ? "" : ": ", reason.c_str());
  if (!reason.empty()) ++g_failures;
}

void check_all(const copy_ops& ops, const check::effort& effort) {
  report(ops.name, "write", check::check_writes(ops, effort));
  report(ops.name, "read", check::check_reads(ops, effort));
  report(ops.name, "fill", check::check_fills(ops, effort));
  report(ops.name, "page edges", check::check_page_edges(ops, effort));
  report(ops.name, "untorn words", check::check_untorn_words(ops, 20'000));
}

std::string check_fenced_helpers() {
  unsigned char device[64] = {}, host[64], back[64];
  for (std::size_t i = 0; i < sizeof host; ++i) host[i] = static_cast<unsigned char>(i + 1);
  for (const mapping_type type : {mapping_type::none, mapping_type::wc, mapping_type::cached, mapping_type::device}) {
    copy_to(type, device, host, sizeof host);
    std::memset(back, 0, sizeof back);
    copy_from(type, back, device, sizeof back);
    if (std::memcmp(back, host, sizeof back) != 0) return "copy_to, copy_from: wrong bytes";
    fill_to(type, device, 0, sizeof device);
    relax();
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  check::effort effort;
  if (argc > 1) effort.size_step = std::strtoul(argv[1], nullptr, 10);
  if (argc > 2) effort.host_step = std::strtoul(argv[2], nullptr, 10);
  for (const copy_ops& ops : supported_copy_ops()) check_all(ops, effort);
  check_all({"cached", cached::write, cached::read, cached::fill}, effort);
  report("helpers", "round trip", check_fenced_helpers());
  const std::string chosen = std::string(write_isa_name()) + "+" + read_isa_name();
  if (argc > 3) report("dispatch", "choice", chosen == argv[3] ? "" : chosen + " instead of " + argv[3]);
  return g_failures == 0 ? 0 : 1;
}
