#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Scattered blocks on a real GPU: the sweep of `peerlane blocks` over sizes and counts, kernels beside lists, and an urgent
# list behind a long one. It builds nothing.
#   scripts/gpu/blocks.sh <out folder of the build> <results folder>
set -u
if [ $# -ne 2 ]; then
  echo "usage: $0 <out folder of the build> <results folder>" >&2
  exit 2
fi
out=$(cd "$1" && pwd) || exit 2
mkdir -p "$2"
results=$(cd "$2" && pwd) || exit 2
here=$(cd "$(dirname "$0")" && pwd)
export PEERLANE_GPU=real
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$here/steps.sh"
LIMIT=330 TAIL=150 step sweep "$out/peerlane" blocks --seed 1 --json "$results/sweep.json"
LIMIT=120 TAIL=60 step beside "$out/peerlane" blocks --beside --seed 1 --json "$results/beside.json"
LIMIT=120 TAIL=20 step urgent "$out/peerlane" blocks --urgent --seed 1 --json "$results/urgent.json"
printf '%s\n' "${summary[@]}"
exit "$failed"
