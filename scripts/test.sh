#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/test.sh [--setup] [PRESET...]: builds these presets (default: release, which users run) and runs every test of each. One that
# fails does not stop the others. The last line counts all. While the tests of one preset run, the next preset is built with the CPU time
# that they leave. --setup: as root, first install what only tests need, while the programs are built, which do not need it.
# Environment: JOBS; CTEST_ARGS (for example "-R Env"); TEST_END_S: time (seconds of `date +%s`) by which presets other than release
# should have ended. Each of these then runs in quarters (every fourth test) as long as there is time for another quarter. Tests that are
# left out are named and counted as skipped.
# Tests wait for other processes, clocks and disks for half of their time. The tests of release take 1090 s of CPU time: on two CPUs
# 1000 to 1200 s with two tests at a time, 980 s with four, and 680 s with six.
set -euo pipefail
cd "$(dirname "$0")/.."
cpus=${JOBS:-$(nproc)}
export LC_ALL=C.UTF-8  # tests read what other programs print
setup='' setup_log=build/setup-tests.log
# Takes minutes on a bare machine, mostly for network and disk, so it runs while the CPUs compile.
begin_setup() {
  if [ "$(id -u)" -ne 0 ]; then  # first, because it may end with a command that the user must run
    scripts/setup.sh --tests
    return
  fi
  mkdir -p build
  scripts/setup.sh --tests >"$setup_log" 2>&1 &
  setup=$!
  trap 'wait "$setup" || true' EXIT  # always wait for it: it may be the package manager
}

finish_setup() {
  local code=0
  wait "$setup" || code=$?
  trap - EXIT
  setup=''
  cat "$setup_log"
  if [ "$code" -ne 0 ]; then
    echo "test: what the tests need could not be installed (above, and in $setup_log)" >&2
    exit 1
  fi
  # The package may have been installed during the configure step.
  if [ -s "$setup_log" ]; then touch build/setup-installed; fi
}

if [ "${1:-}" = --setup ]; then
  shift
  begin_setup
fi
presets=("$@")
[ $# -gt 0 ] || presets=(release)
failed=0
reports=()

# GCC 12's ThreadSanitizer dies at start where the kernel randomises more address bits than it expects; without
# randomisation it works. If that cannot be disabled, the run is skipped, which the summary says.
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

# Passed tests are counted, not listed, so that the log of a good run is short.
show() { grep -vE '^ +Start +[0-9]+: | +Passed +[0-9.]+ sec$' || true; }

# time_for SECONDS: whether that much time is left.
time_for() { [ -z "${TEST_END_S:-}" ] || [ $(($(date +%s) + $1)) -le "$TEST_END_S" ]; }

# Number of tests in the quarters $2 to 4 of preset $1.
tests_left() {
  local quarter count=0
  for quarter in $(seq "$2" 4); do
    # shellcheck disable=SC2086 # CTEST_ARGS is a list of words
    count=$((count + $(ctest --preset "$1" -N -I "$quarter,,4" ${CTEST_ARGS:-} | sed -n 's/^Total Tests: //p')))
  done
  echo "$count"
}

# run_tests REPORT MORE...: runs the tests of $preset. Tests that fail run once more after the others, one at a time, and their first
# output is kept: on a shared machine, some tests exceed their time. Those that then pass are named at the end. If more than twenty
# fail, there is a real fault, and none is repeated.
run_tests() {
  local report=$PWD/build/$preset/$1 again=$PWD/build/$preset/${1%.xml}-again.xml count
  shift
  # shellcheck disable=SC2086 # prefix and CTEST_ARGS are lists of words
  $prefix ctest --preset "$preset" -j "$jobs" --output-junit "$report" "$@" ${CTEST_ARGS:-} 2>&1 |
    tee -a "build/$preset/ctest.log" | show && reports+=("$preset=$report") && return
  reports+=("$preset=$report")
  count=$(wc -l <"build/$preset/Testing/Temporary/LastTestsFailed.log" 2>/dev/null || echo 0)
  if [ "$count" -gt 0 ] && [ "$count" -le 20 ]; then
    echo "test: $count failed, and are run once more, one at a time"
    signal_build STOP
    # shellcheck disable=SC2086 # prefix is a list of words
    $prefix ctest --preset "$preset" -j 1 --rerun-failed --output-junit "$again" 2>&1 |
      tee -a "build/$preset/ctest.log" | show && reports+=("$preset=$again") && signal_build CONT && return
    signal_build CONT
    reports+=("$preset=$again")
  fi
  failed=1
}

run_quarters() {
  local quarter began took=0 left
  for quarter in 1 2 3 4; do
    if ! time_for "$took"; then
      left=$(tests_left "$preset" "$quarter")
      echo "$left" >"build/$preset/tests-left"
      echo "test: NOT RUN: $left tests of $preset (TEST_END_S has come)"
      return
    fi
    began=$SECONDS
    run_tests "junit-$quarter.xml" -I "$quarter,,4"
    took=$((SECONDS - began))
  done
}

# begin_build PRESET: builds it beside running tests, which wait for clocks and other processes for half of their time. The compilers get
# only CPU time that is left over (SCHED_IDLE), so that the tests do not take longer.
ahead='' ahead_log=''
begin_build() {
  ahead_log=build/build-$1.log
  set -m  # a separate process group, so that all of it can be stopped
  chrt --idle 0 scripts/build.sh "$1" --tests >"$ahead_log" 2>&1 </dev/null &
  ahead=$!
  set +m
  trap end_build EXIT
}
# signal_build SIGNAL: running compilers continue; ninja starts no more.
signal_build() { if [ -n "$ahead" ]; then kill "-$1" -- "-$ahead" 2>/dev/null || true; fi; }
end_build() {
  signal_build TERM
  signal_build CONT
  ahead=''
}

# False: there is not enough time for it.
finish_build() {
  while kill -0 "$ahead" 2>/dev/null; do
    time_for 0 || return 1
    sleep 1
  done
  local code=0
  wait "$ahead" || code=$?
  ahead=''
  cat "$ahead_log"
  [ "$code" -eq 0 ] || exit "$code"
}

build_now() {
  if [ -n "$setup" ]; then
    scripts/build.sh "$1"
    finish_setup
  fi
  scripts/build.sh "$1" --tests
}

for i in "${!presets[@]}"; do
  preset=${presets[i]} next=${presets[i + 1]:-}
  echo "== $preset"
  if ! prefix=$(prefix_for "$preset"); then
    echo "test: NOT RUN: $preset (ThreadSanitizer cannot place its memory on this kernel: lower vm.mmap_rnd_bits to 28)"
    continue
  fi
  if [ -z "$ahead" ]; then
    if [ "$preset" != release ] && ! time_for 0; then
      echo "test: NOT RUN: $preset (TEST_END_S has come)"
      continue
    fi
    build_now "$preset"
  elif ! finish_build; then
    echo "test: NOT RUN: $preset (TEST_END_S has come before it was built)"
    end_build
    continue
  fi
  # More tests at a time if nothing is built meanwhile; those of ThreadSanitizer use the CPUs for longer.
  jobs=$((2 * cpus))
  if [ "$preset" = release ] && [ -z "$next" ]; then jobs=$((3 * cpus)); fi
  rm -f "build/$preset/"junit*.xml "build/$preset/tests-left" "build/$preset/ctest.log"
  if [ -n "$next" ] && prefix_for "$next" >/dev/null && time_for 0; then begin_build "$next"; fi
  if [ "$preset" = release ] || [ -z "${TEST_END_S:-}" ]; then run_tests junit.xml; else run_quarters; fi
done

python3 scripts/test_summary.py "${reports[@]}" || failed=1
exit "$failed"
