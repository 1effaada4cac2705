#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debug_gate.sh BUILD KERNELS: suite and mutants on the debug kernel that debug_kernel.sh has made in KERNELS, with the programs of BUILD.
# Some minutes. Exit code as gate.py's.
set -euo pipefail
build=${1:?usage: debug_gate.sh BUILD KERNELS}
kernels=${2:?usage: debug_gate.sh BUILD KERNELS}
exec python3 -B "$(dirname "$0")/gate.py" --build "$build" --programs "$build/test/kernel" \
  --conformance "$build/test/conformance/conformance_test" --simulator "$(realpath "$build/out/sim")/libcuda.so.1" debug "$kernels"
