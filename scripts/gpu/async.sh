#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Streams that signal each other against the CPU between kernel and message, on two GPUs where there are two: every benchmark of
# docs/async-benchmarks.md, about 80 s on two H200. No build here: it takes the folder that `make build` leaves. Results (JSON and
# text) go to the folder given.
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
export LIMIT=60 TAIL=40
program=$out/peerlane

async() { # name, benchmark, options...
  local name=$1 what=$2
  shift 2
  step "$name" "$program" async "$what" "$@" --json "$results/$name.json"
}

arms=normal,hostfn,peer,peer-kernel,graph
async pingpong pingpong --arms $arms -i 4000 -s 128 -k 0,2,5,10,20,50,200
async pingpong_sizes pingpong --arms $arms -i 1000 -s 8,128,1K,4K,8K,16K,64K,256K,1M,4M
async pingpong_one_gpu pingpong --gpus 0,0 -i 500
async pingpong_proxy pingpong --arms normal,proxy -i 4000 -s 128,8K,1M
async economy economy --arms peer,graph -i 20000 -k 0,10
async economy_proxy economy --arms proxy -i 10000 -k 0,10

async stencil_2x1 stencil --arms normal,peer,peer-kernel -n 16,32,64,128,256,512,1024,2048,4096,8192
async stencil_1x2 stencil --grid 1x2 --arms normal,peer -n 256
async stencil_2x2 stencil --grid 2x2 --arms normal,peer -n 64,256,1024 -i 100 -r 3
async stencil_proxy stencil --arms normal,proxy -n 64,256,1024

async stopped stopped
async stuck stuck
CUDA_DEVICE_MAX_CONNECTIONS=32 async stuck_32_queues stuck
async poke poke
async cost cost

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
