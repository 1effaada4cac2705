#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a new user runs first, on a real GPU: the demo as root and as a user without rights, sanity, a soak, what only a GPU can show of
# the mapping layer, and the Python package from its wheel. It builds nothing; results (JSON) go to the folder given, a table comes last.
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
