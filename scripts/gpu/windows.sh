#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures puts and gets on windows of GPU memory between two processes, both on one GPU and, if there are two GPUs, one on each: by DMA
# channels of the origin, beside messages (PEERLANE_LINK_CHANNELS=0). All bytes are checked. It builds nothing: it uses the folder that
# `make build` made. About a minute. Results (JSON and text) go to the results folder.
#   scripts/gpu/windows.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
export LIMIT=25 TAIL=30
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')

p2p() { # name, benchmark, options...
  local name=$1 benchmark=$2
  shift 2
  step "$name" "$program" p2p "$benchmark" "$@" -c --launch fork --json "$results/$name.json"
}

latencies() { # label, GPUs, the origin's memory...
  local label=$1 pair=$2 origin
  shift 2
  for origin in "$@"; do
    p2p "put_latency_${label}_${origin}D" put_latency --gpus "$pair" -m 8:1M -i 2000 -x 200 --pct 50,99 "$origin" D
    p2p "get_latency_${label}_${origin}D" get_latency --gpus "$pair" -m 8:1M -i 2000 -x 200 --pct 50,99 "$origin" D
  done
}
latencies one_gpu 0,0 H D
p2p put_bw_one_gpu_HD put_bw --gpus 0,0 -m 64K:64M -i 20 -x 2 H D
p2p get_bw_one_gpu_HD get_bw --gpus 0,0 -m 64K:64M -i 20 -x 2 H D
p2p put_bw_one_gpu_DD put_bw --gpus 0,0 -m 64K:64M -i 20 -x 2 D D
PEERLANE_LINK_CHANNELS=0 p2p put_latency_messages_one_gpu_HD put_latency --gpus 0,0 -m 8:1M -i 300 -x 50 --pct 50,99 H D
PEERLANE_LINK_CHANNELS=0 p2p put_latency_messages_one_gpu_DD put_latency --gpus 0,0 -m 8:1M -i 300 -x 50 --pct 50,99 D D
if [ "$gpus" -gt 1 ]; then
  latencies two_gpus 0,1 H D
  p2p put_bw_two_gpus_DD put_bw --gpus 0,1 -m 64K:64M -i 20 -x 2 D D
  p2p get_bw_two_gpus_DD get_bw --gpus 0,1 -m 64K:64M -i 20 -x 2 D D
  PEERLANE_LINK_CHANNELS=0 p2p put_latency_messages_two_gpus_DD put_latency --gpus 0,1 -m 8:1M -i 300 -x 50 --pct 50,99 D D
fi

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
