#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Scattered blocks on a real GPU: the sweep of `peerlane blocks` over sizes and counts, kernels beside lists, and an urgent
# list behind a long one. It builds nothing.
#   scripts/gpu/blocks.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
LIMIT=330 TAIL=150 step sweep "$out/peerlane" blocks --seed 1 --json "$results/sweep.json"
LIMIT=120 TAIL=60 step beside "$out/peerlane" blocks --beside --seed 1 --json "$results/beside.json"
LIMIT=120 TAIL=20 step urgent "$out/peerlane" blocks --urgent --seed 1 --json "$results/urgent.json"
printf '%s\n' "${summary[@]}"
exit "$failed"
