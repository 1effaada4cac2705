#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs on a real GPU what a new user runs first: the demo as root and as an unprivileged user, sanity, a soak, the tests of the mapping
# layer that need a GPU, and the Python package from its wheel. It builds nothing. Results (JSON) go to the results folder; prints a table
# at the end.
#   scripts/gpu/first_use.sh <out folder of the build> <mapping_faults> <wheel> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out "faults=mapping_faults" "wheel=wheel" results -- "$@"

cp -r "$out" /tmp/peerlane-out && chmod -R a+rX /tmp/peerlane-out
LIMIT=100 TAIL=14 step demo_root "$out/peerlane" demo --json "$results/demo.json"
LIMIT=100 TAIL=3 step demo_nobody "${nobody[@]}" /tmp/peerlane-out/peerlane demo
LIMIT=60 TAIL=6 step sanity_nobody "${nobody[@]}" /tmp/peerlane-out/peerlane sanity
LIMIT=110 TAIL=45 step mapping_faults "$faults" --libraries "$out" --backend rm
LIMIT=120 TAIL=70 step python "$here/python.sh" "$wheel" "$results"
LIMIT=150 TAIL=45 step soak "$out/peerlane" soak --minutes 1 --seed 9 --json "$results/soak.json"
printf '%s\n' "${summary[@]}"
exit "$failed"
