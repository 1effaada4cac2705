#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Streams that signal each other against the CPU between kernel and message, in turns, on two GPUs where there are two. No build
# here: it takes the folder that `make build` leaves. Results (JSON and text) go to the folder given.
#   scripts/gpu/async.sh <out folder of the build> <results folder>
set -u
if [ $# -ne 2 ]; then
  echo "usage: $0 <out folder of the build> <results folder>" >&2
  exit 2
fi
out=$(cd "$1" && pwd) || exit 2
mkdir -p "$2"
results=$(cd "$2" && pwd) || exit 2
export PEERLANE_GPU=${PEERLANE_GPU:-real}
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
export LIMIT=60 TAIL=30
program=$out/peerlane

async() { # name, benchmark, options...
  local name=$1 what=$2
  shift 2
  step "$name" "$program" async "$what" "$@" --json "$results/$name.json"
}

async pingpong pingpong -i 10000 -s 128 -k 0,2,5,10,20,50,200
async pingpong_sizes pingpong -i 2000 -s 8,128,1K,4K,8K,16K,64K,256K,1M,4M -k 0
async pingpong_one_gpu pingpong --gpus 0,0 -i 500 -s 128 -k 0

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
