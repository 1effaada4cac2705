#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures collectives on streams beside NCCL's, if this machine's Python has NCCL; every result is checked. With one GPU, two processes
# take turns on it. TUNE=1: also with other blocks, chunks and limits. It builds nothing: it uses the folder that `make build` made.
# Results (JSON and text) go to the results folder.
#   scripts/gpu/collectives.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
export LIMIT=${LIMIT:-60} TAIL=40
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
find_nccl

# Collectives of a communicator: the CPU drives them; kernels or the CPU combine.
driven() { # name, GPUs, collective, options...
  local name=$1 pair=$2 kind=$3
  shift 3
  step "$name" "$program" p2p "$kind" --launch fork -n "${RANKS:-2}" --gpus "$pair" -c --pct 50,99 "$@" D D --json "$results/$name.json"
}

collectives() { # name, options...
  local name=$1
  shift
  step "$name" "$program" async collectives "$@" --json "$results/$name.json"
}

driven driven_allreduce_one_gpu 0,0 allreduce -m 1K:16M -i 20 -x 3
driven driven_reduce_scatter_one_gpu 0,0 reduce_scatter -m 1K:16M -i 20 -x 3
if [ "$gpus" -gt 1 ]; then
  driven driven_allreduce_two_gpus 0,1 allreduce -m 1K:64M -i 20 -x 3
  driven driven_reduce_scatter_two_gpus 0,1 reduce_scatter -m 1K:64M -i 20 -x 3
fi
if [ "$gpus" -lt 2 ]; then
  collectives one_gpu -n 2 --gpus 0 -s 8,1K,64K,1M -r 5 -i 2
else
  via=ours${PEERLANE_NCCL_LIBRARY:+,nccl}
  if [ -n "${TUNE:-}" ]; then
    collectives tune_small -n "$gpus" --small-kib 1024 -s 8,1K,4K,16K,64K,128K,256K,512K
    collectives tune_large -n "$gpus" --small-kib 1 -s 16K,64K,128K,256K,512K,1M,2M,4M
    for blocks in 24 32 48 64 96 128; do
      for slot in 64 128 256; do
        collectives "tune_${blocks}_$slot" -n "$gpus" -s 1M,4M,16M,64M,256M -r 7 -i 8 --blocks $blocks --slot-kib $slot
      done
    done
  fi
  collectives all_reduce -n "$gpus" --via "$via"
  collectives all_reduce_bfloat16 -n "$gpus" --via "$via" --type bfloat16
  for kind in reduce_scatter all_gather all_to_all; do
    collectives $kind -n "$gpus" --kinds $kind --via "$via" -s 1K,16K,64K,256K,1M,4M,16M,64M,256M -r 11
  done
fi

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
