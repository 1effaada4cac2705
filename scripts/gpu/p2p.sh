#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Messages between GPU buffers of two processes: ours beside UCX alone, in turns, as OSU's benchmarks measure them. With two GPUs
# one for each process, else both on one. No build here: it takes the folder that `make build` leaves, and a folder with a UCX
# that knows CUDA (the lib folder of PyPI's libucx-cu13). Results (JSON and text) go to the folder given.
#   scripts/gpu/p2p.sh <out folder of the build> <results folder> <folder of libucp.so.0>
set -u
if [ $# -ne 3 ]; then
  echo "usage: $0 <out folder of the build> <results folder> <folder of libucp.so.0>" >&2
  exit 2
fi
out=$(cd "$1" && pwd) || exit 2
ucx=$(cd "$3" && pwd) || exit 2
mkdir -p "$2"
results=$(cd "$2" && pwd) || exit 2
export PEERLANE_GPU=${PEERLANE_GPU:-real}
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
export UCX_MODULE_DIR=$ucx/ucx
export LIMIT=40 PEERLANE_UCX_LIBRARY=$ucx/libucp.so.0 LD_LIBRARY_PATH=$ucx:${LD_LIBRARY_PATH:-} UCX_WARN_UNUSED_ENV_VARS=n
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')

p2p() { # name, benchmark, options...
  local name=$1 what=$2
  shift 2
  step "$name" "$program" p2p "$what" "$@" --launch fork --pct 50,99 --json "$results/$name.json"
}

export TAIL=30
"$program" p2p latency -m 8:8 -i 100 --show-plan D D >"$results/plan.txt" 2>&1
cat "$results/plan.txt"
p2p one_gpu_latency latency --via ours --gpus 0,0 -m 1:1M -i 1000 -x 100 D D
p2p one_gpu_latency_ucx latency --via ours,ucx --gpus 0,0 -m 8:64K -i 200 -x 20 D D
p2p one_gpu_check latency --via ours --gpus 0,0 -m 1:1M -i 20 -x 2 -c D D
p2p host_latency latency --via ours,ucx -m 8:64K -i 2000 -x 200 H H
p2p host_to_device latency --via ours,ucx --gpus 0,0 -m 8:64K -i 300 -x 50 H D
if [ "$gpus" -gt 1 ]; then
  p2p latency latency --via ours,ucx --gpus 0,1 -m 1:64M -i 1000 -x 100 D D
  p2p check latency --via ours --gpus 0,1 -m 1:16M -i 20 -x 2 -c D D
  p2p bandwidth bw --via ours,ucx --gpus 0,1 -m 1:64M -i 40 -x 5 D D
  p2p bidirectional bibw --via ours,ucx --gpus 0,1 -m 1K:64M -i 20 -x 5 D D
fi
# Two hosts' way, over TCP on loopback.
UCX_TLS=tcp,cuda_copy,self PEERLANE_LINK_PATH=network p2p network_latency latency --via ours,ucx --gpus "0,$((gpus > 1))" -m 8:1M \
  -i 200 -x 20 D D
UCX_TLS=tcp,cuda_copy,self PEERLANE_LINK_PATH=network p2p network_large latency --via ours,ucx --gpus "0,$((gpus > 1))" \
  -m 2M:64M -i 10 -x 2 D D

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
