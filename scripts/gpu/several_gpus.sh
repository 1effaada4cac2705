#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks messages between the memories of the host and of all GPUs of two processes, one of which is killed and comes back; every byte is
# compared. About 60 s on two GPUs. It builds nothing: it uses the folder that `make build` made, and a bench folder.
#   scripts/gpu/several_gpus.sh <results folder> <bench folder> [<out folder of the build>]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments results "bench=folder of the benches (-DPEERLANE_BENCH=ON)" "?out=out folder of the build" -- "$@"
out=${out:-$(realpath "$here/../../build/release/out")}
export LIMIT=150 TAIL=100 LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

step several_gpus "$bench/several_gpus_bench" --cycles 3 --rounds 100 --json "$results/several_gpus.json"

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
