#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/build.sh PRESET [--tests|--configure-only]: configures and builds one preset. Prints the features that are on, one line of
# progress on a terminal, and the whole log only if something fails. --tests: also builds the programs of the tests, which the target
# `all` leaves out; they take as long again.
# Environment: JOBS (parallel compilers), CMAKE_ARGS (more arguments for the configure step).
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: build.sh PRESET [--tests|--configure-only]}
jobs=${JOBS:-$(nproc)}
log=build/configure-$preset.log
started=$SECONDS

mkdir -p build
# Ninja configures again if a CMake file has changed; this step is for the first build and for other arguments.
# shellcheck disable=SC2086 # CMAKE_ARGS is a list of words
configure() {
  if ! cmake --preset "$preset" ${CMAKE_ARGS:-} >"$log" 2>&1; then
    cat "$log"
    echo "build: the configure step failed (log: $log)" >&2
    exit 1
  fi
}
if [ ! -f "build/$preset/build.ninja" ] || [ CMakePresets.json -nt "build/$preset/build.ninja" ] || [ -n "${CMAKE_ARGS:-}" ] ||
  [ build/setup-installed -nt "$log" ] || [ "${2:-}" = --configure-only ]; then
  configure
fi
# Shows the features that are on and off, and CMake's warnings.
grep -E '^-- (Peerlane:|.*(not built|not found: |: OFF))|Warning' "$log" | sed 's/^-- //' || true
[ "${2:-}" != --configure-only ] || exit 0

quiet=() targets=(all)
if [ ! -t 1 ]; then quiet=(-- --quiet); fi
[ "${2:-}" != --tests ] || targets=(all test/all)
NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" -j "$jobs" --target "${targets[@]}" "${quiet[@]}"
echo "build: $preset ready in build/$preset/out ($((SECONDS - started)) s)"
