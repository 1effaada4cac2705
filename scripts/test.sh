#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/test.sh [PRESET...]: builds these presets (release, which users run, if none is named) and runs every test of each. All of
# them run even if one fails; the last line counts all. Environment: JOBS, CTEST_ARGS (for example "-R Env").
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
export LC_ALL=C.UTF-8  # tests read what other programs print
presets=("$@")
[ $# -gt 0 ] || presets=(release)
failed=0
reports=()

# GCC 12's ThreadSanitizer dies at start where the kernel randomises more address bits than it expects; without
# randomisation it works. Where that cannot be switched off either, the run is left out, and said so.
prefix_for() {
  [ "$1" = tsan ] || return 0
  local probe=build/tsan-probe
  mkdir -p build
  echo 'int main() {}' | "${CXX:-g++}" -x c++ -fsanitize=thread - -o "$probe"
  for _ in 1 2 3 4 5 6 7 8; do
    if ! "$probe" 2>/dev/null; then
      setarch -R "$probe" 2>/dev/null && echo "setarch -R" && return 0
      return 1
    fi
  done
}

# What passed is counted, not listed: the log of a green run is short enough to be read.
show() { grep -vE '^ +Start +[0-9]+: | +Passed +[0-9.]+ sec$' || true; }

for preset in "${presets[@]}"; do
  echo "== $preset"
  if ! prefix=$(prefix_for "$preset"); then
    echo "test: NOT RUN: $preset (ThreadSanitizer cannot place its memory on this kernel: lower vm.mmap_rnd_bits to 28)"
    continue
  fi
  scripts/build.sh "$preset" --tests
  report=$PWD/build/$preset/junit.xml
  rm -f "$report"
  # A test that fails is run once more, with its first output kept: machines are shared and some tests wait for others. One that
  # then passes is named at the end.
  # shellcheck disable=SC2086 # prefix and CTEST_ARGS are lists of words
  $prefix ctest --preset "$preset" -j "$jobs" --repeat until-pass:2 --output-junit "$report" ${CTEST_ARGS:-} 2>&1 |
    tee "build/$preset/ctest.log" | show || failed=1
  reports+=("$preset=$report")
done

python3 scripts/test_summary.py "${reports[@]}" || failed=1
exit "$failed"
