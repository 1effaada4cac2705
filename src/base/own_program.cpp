// SPDX-License-Identifier: Apache-2.0
#include "base/own_program.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include "base/real_path.hpp"

namespace pl {
namespace {

constexpr const char* kLink = "/proc/self/exe";

// A relative path is valid until the program changes its folder, so it is resolved when the library is loaded.
const std::string& path_at_start() {
  static const std::string& path = *new std::string(real_path(reinterpret_cast<const char*>(getauxval(AT_EXECFN))));
  return path;
}
[[gnu::constructor]] void remember_path_at_start() {
  if (access(kLink, F_OK) != 0) path_at_start();
}

}  // namespace

std::string own_program() { return access(kLink, F_OK) == 0 ? kLink : path_at_start(); }

std::string own_program_file() {
  std::string found = real_path(kLink);
  return found.empty() ? path_at_start() : found;
}

}  // namespace pl
