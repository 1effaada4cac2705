#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures scattered blocks on a real GPU: the sweep of `peerlane blocks` over sizes and counts, kernels beside lists, an urgent list behind
# a long one, and vLLM's Triton kernel if PyTorch, Triton and its file are available. It builds nothing.
#   scripts/gpu/blocks.sh <out folder of the build> <results folder> [vLLM's swap_blocks_triton.py]
# SHORT=1: only the points that the documentation names, about two minutes.
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "?triton=vLLM's swap_blocks_triton.py" -- "$@"
sweep=() triton_points=()
if [ -n "${SHORT:-}" ]; then
  sweep=(--sizes "512,1K,4K,8K,16K,64K" --counts "256,1024,16384,100000" --memory 512M --time 60)
  triton_points=(--sizes "4K,8K,16K" --counts "1024,16384")
fi
LIMIT=330 TAIL=150 step sweep "$out/peerlane" blocks --seed 1 "${sweep[@]}" --json "$results/sweep.json"
LIMIT=120 TAIL=60 step beside "$out/peerlane" blocks --beside --seed 1 --json "$results/beside.json"
LIMIT=120 TAIL=20 step urgent "$out/peerlane" blocks --urgent --seed 1 --json "$results/urgent.json"
if python3 -c 'import torch, triton' 2>"$results/triton.txt" && { [ -n "$triton" ] || python3 -c 'import vllm' 2>>"$results/triton.txt"; }; then
  LIMIT=120 TAIL=60 step triton python3 "$here/blocks_triton.py" ${triton:+--triton-file "$triton"} "${triton_points[@]}" --json "$results/triton.json"
else
  echo "vLLM's Triton kernel is left out: $(tail -n 1 "$results/triton.txt")"
fi
tidy_results "$results"
printf '%s\n' "${summary[@]}"
exit "$failed"
