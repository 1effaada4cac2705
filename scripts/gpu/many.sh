#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs four GPUs or more: every link, messages of several pairs at once, streams on a 2x2 grid, all devices in shuffled order.
# No build here: it takes the folder that `make build` leaves, and optionally a folder with a UCX that knows CUDA. Results (JSON and
# text) go to the folder given.
#   scripts/gpu/many.sh <out folder of the build> <results folder> [folder of libucp.so.0]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "?ucx=folder of libucp.so.0" -- "$@"
export LIMIT=${LIMIT:-60} TAIL=24
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
all=$(seq -s, 0 $((gpus - 1)))
via=ours
if [ -n "$ucx" ]; then
  use_ucx
  via=ours,ucx
fi

step topo "$program" topo
command -v nvidia-smi >/dev/null && step nvidia_smi_topo nvidia-smi topo -m
# All devices at once, counted backwards, so that a wrong order of devices shows.
every_sanity() {
  local gpu rc=0 running=()
  for gpu in $(seq 0 $((gpus - 1))); do
    CUDA_VISIBLE_DEVICES=$(seq -s, $((gpus - 1)) -1 0) timeout -k 5 100 "$program" sanity -d "$gpu" \
      --json "$results/sanity_$gpu.json" >"$results/sanity_$gpu.txt" 2>&1 &
    running+=($!)
  done
  for gpu in $(seq 0 $((gpus - 1))); do
    wait "${running[$gpu]}" || rc=1
    echo "GPU $gpu: $(grep -m1 ^Total "$results/sanity_$gpu.txt" || tail -n 1 "$results/sanity_$gpu.txt")"
  done
  return $rc
}
step sanity every_sanity
LIMIT=150 step bandwidth "$program" bandwidth --json "$results/bandwidth.json"
step multinode multinode_ranks "$gpus"
step mbw_mr "$program" p2p mbw_mr --via $via --launch fork -n "$gpus" --gpus "$all" -m 1K:16M -i 20 -x 5 D D --json "$results/mbw_mr.json"
step multi_lat "$program" p2p multi_lat --via $via --launch fork -n "$gpus" --gpus "$all" -m 8:1M -i 300 -x 50 D D --json "$results/multi_lat.json"
for one in $(seq 0 $((gpus - 2))); do
  for other in $(seq $((one + 1)) $((gpus - 1))); do
    step "pingpong_${one}_$other" "$program" async pingpong --gpus "$one,$other" -i 2000 -s 128 --json "$results/pingpong_${one}_$other.json"
  done
done
step stencil_2x2 "$program" async stencil --grid 2x2 --gpus "$all" --arms normal,peer,peer-kernel,proxy -n 64,256,1024,4096 -i 300 -r 3 \
  --json "$results/stencil_2x2.json"
step stencil_row "$program" async stencil --grid "${gpus}x1" --gpus "$all" --arms normal,peer,peer-kernel -n 256 -i 300 -r 3 \
  --json "$results/stencil_row.json"

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
