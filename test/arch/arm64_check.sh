#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Cross-compiles src/arch with the copy checker for AArch64 and runs it under qemu-user: the only check of the NEON routines
# on an x86 machine. Exit status 77 (skipped) with the reason when a tool is missing.
#     arm64_check.sh <source root> <scratch folder>
set -eu
root=$1
scratch=$2
compiler=${ARM64_CXX:-aarch64-linux-gnu-g++}

skip() {
  echo "SKIPPED: $1"
  exit 77
}
command -v "$compiler" >/dev/null || skip "$compiler is not installed (Debian: g++-aarch64-linux-gnu)"
emulator=
for candidate in qemu-aarch64 qemu-aarch64-static; do
  if command -v "$candidate" >/dev/null; then
    emulator=$candidate
    break
  fi
done
[ -n "$emulator" ] || skip "qemu-aarch64 is not installed (Debian: qemu-user)"

mkdir -p "$scratch"
"$compiler" -std=c++20 -O2 -g1 -Wall -Wextra -Wshadow -Wconversion -Werror -static -pthread \
  -I "$root/include" -I "$root" -I "$root/src" -o "$scratch/copy_check_arm64" \
  "$root"/src/base/env.cpp "$root"/src/base/env_names.cpp "$root"/src/base/spelling.cpp "$root"/src/base/log.cpp "$root"/src/base/text.cpp \
  "$root"/src/arch/cpu_features.cpp "$root"/src/arch/copy_dispatch.cpp \
  "$root"/src/arch/copy_portable.cpp "$root"/src/arch/copy_neon.cpp \
  "$root"/test/arch/copy_checker.cpp "$root"/test/arch/copy_check_main.cpp
# An emulated call costs microseconds: every 7th large size (each alignment starts at another one), and small sizes
# exhaustively.
exec "$emulator" "$scratch/copy_check_arm64" 7 1 neon+neon
