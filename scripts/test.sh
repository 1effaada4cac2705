#!/usr/bin/env bash
# Builds and runs every test: sanitizer builds first, the release build (which users run) last.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

for preset in ${TEST_PRESETS:-asan tsan release}; do
  echo "== $preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" -j "$jobs" | tail -n 1
  ctest --preset "$preset" --progress -j "$jobs"
done
