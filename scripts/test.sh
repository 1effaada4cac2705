#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/test.sh [--setup] [PRESET...]: builds these presets (release, which users run, if none is named) and runs every test of each.
# All of them run even if one fails; the last line counts all. While the tests of one preset run, the next one is built on what they
# leave of the CPUs. --setup: what only tests need is installed first, as root beside the
# build of the programs, which do without it. Environment: JOBS, CTEST_ARGS (for example "-R Env"), and TEST_END_S: seconds
# of `date +%s` when other presets than release should have ended. Each then runs in quarters, every fourth test in turn, as long as
# there is time for another; what was left out is said and counted as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
# Tests wait for other processes, clocks and disks for half of their time. The release list takes 1090 s of CPU time: on two CPUs
# it took 1000 to 1200 s with two tests at a time, 980 s with four and 680 s with six.
cpus=${JOBS:-$(nproc)}
export LC_ALL=C.UTF-8  # tests read what other programs print
setup='' setup_log=build/setup-tests.log
# Minutes on a bare machine, in which the network and the disk work and the CPUs do not.
begin_setup() {
  if [ "$(id -u)" -ne 0 ]; then  # it may end with the command that is to be run, so it comes before all else
    scripts/setup.sh --tests
    return
  fi
  mkdir -p build
  scripts/setup.sh --tests >"$setup_log" 2>&1 &
  setup=$!
  trap 'wait "$setup" || true' EXIT  # never without its end: it may be the package manager
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
  # It may have come while the configure step looked for it.
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

# time_for SECONDS: whether so much is left.
time_for() { [ -z "${TEST_END_S:-}" ] || [ $(($(date +%s) + $1)) -le "$TEST_END_S" ]; }

# Tests of quarters $2 to 4 of preset $1.
tests_left() {
  local quarter count=0
  for quarter in $(seq "$2" 4); do
    # shellcheck disable=SC2086 # CTEST_ARGS is a list of words
    count=$((count + $(ctest --preset "$1" -N -I "$quarter,,4" ${CTEST_ARGS:-} | sed -n 's/^Total Tests: //p')))
  done
  echo "$count"
}

# run_tests REPORT MORE...: of $preset. Tests that fail are run once more when the others are done, one at a time, with their first
# output kept: machines are shared, and some tests wait for others. Those that then pass are named at the end. More than twenty are a
# fault, not bad luck.
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

# begin_build PRESET: the tests wait for clocks and other processes for half of their time. The scheduler gives the compilers what is
# left over (SCHED_IDLE), so that the tests' own times stay what they are.
ahead='' ahead_log=''
begin_build() {
  ahead_log=build/build-$1.log
  set -m  # a process group of its own, to be stopped whole
  chrt --idle 0 scripts/build.sh "$1" --tests >"$ahead_log" 2>&1 </dev/null &
  ahead=$!
  set +m
  trap end_build EXIT
}
# signal_build SIGNAL: compilers that have begun go on, ninja starts no more.
signal_build() { if [ -n "$ahead" ]; then kill "-$1" -- "-$ahead" 2>/dev/null || true; fi; }
end_build() {
  signal_build TERM
  signal_build CONT
  ahead=''
}

# False: there is no time for it.
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
  # More where nothing is built beside; ThreadSanitizer's tests need the CPUs for longer.
  jobs=$((2 * cpus))
  if [ "$preset" = release ] && [ -z "$next" ]; then jobs=$((3 * cpus)); fi
  rm -f "build/$preset/"junit*.xml "build/$preset/tests-left" "build/$preset/ctest.log"
  if [ -n "$next" ] && prefix_for "$next" >/dev/null && time_for 0; then begin_build "$next"; fi
  if [ "$preset" = release ] || [ -z "${TEST_END_S:-}" ]; then run_tests junit.xml; else run_quarters; fi
done

python3 scripts/test_summary.py "${reports[@]}" || failed=1
exit "$failed"
