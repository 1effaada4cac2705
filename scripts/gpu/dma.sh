#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks DMA channels on a real GPU and times them beside CUDA's copies, as root and as an unprivileged user: what remains after processes
# that were killed during a copy; the planner's copies and lists by channel (also in stream order and through rings, which are off by
# default); the bandwidth by channel beside CUDA's; GDRCopy's latency test with and without channels.
# It builds nothing (bench/dma_*bench: -DPEERLANE_BENCH=ON).
#   scripts/gpu/dma.sh <folder of both benches> <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "bench=folder of the dma benches" out results -- "$@"
cp "$bench"/dma_{,planner_,kill_,order_,submit_}bench /tmp/ && chmod 755 /tmp/dma_{,planner_,kill_,order_,submit_}bench

killed() { # kills processes during their work, eight at a time; afterwards the GPU must be in its earlier state
  local before after
  before=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader)
  for _ in 1 2 3 4 5 6 7 8; do (timeout -s KILL "$((RANDOM % 3 + 1))" /tmp/dma_bench >/dev/null 2>&1 &); done
  sleep 5
  after=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader)
  echo "GPU memory in use before and after eight killed processes: $before, $after"
  [ "$before" = "$after" ] && timeout 100 /tmp/dma_bench | tail -1
}
LIMIT=120 TAIL=60 step dma /tmp/dma_bench "$results/dma.json"
LIMIT=120 TAIL=8 step dma_nobody "${nobody[@]}" /tmp/dma_bench
LIMIT=150 TAIL=4 step dma_killed killed
gpu_files() { find /proc/[0-9]*/fd -lname '/dev/nvidia*' 2>/dev/null | wc -l; }
ends() { # kills processes at each call, at exec, and 16 at once; afterwards the GPU must be in its earlier state
  local before after files
  before=$(nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader)
  files=$(gpu_files)
  timeout 100 /tmp/dma_kill_bench || return 1
  sleep 1
  after=$(nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader)
  echo "GPU memory in use before and after: $before, $after"
  echo "files of the GPUs that processes have open, before and after: $files, $(gpu_files)"
  [ "$before" = "$after" ]
}
LIMIT=120 TAIL=8 step dma_ends ends
LIMIT=150 TAIL=120 step submit /tmp/dma_submit_bench "$results/submit.json"
LIMIT=150 TAIL=40 step order /tmp/dma_order_bench --seconds 5 --only ed "$results/order.json"
LIMIT=120 TAIL=40 step planner /tmp/dma_planner_bench "$results/planner.json"
LIMIT=200 TAIL=60 step choices /tmp/dma_planner_bench --calibrate "$results/costs.txt" --only choices "$results/choices.json"
LIMIT=120 TAIL=4 step planner_nobody "${nobody[@]}" /tmp/dma_planner_bench
channel_rows=(host_to_device_memcpy_ce device_to_host_memcpy_ce host_to_device_bidirectional_memcpy_ce
  host_to_device_dma device_to_host_dma host_to_device_bidirectional_dma
  {host_to_device,device_to_host}_scattered_{4k,16k,64k}_dma)
LIMIT=300 TAIL=40 step bandwidth "$out/peerlane" bandwidth -t "${channel_rows[@]}" --json "$results/bandwidth.json"
LIMIT=200 TAIL=60 step calibrate_rings env PEERLANE_DMA_RINGS=on XDG_CACHE_HOME=/tmp/dma_rings_cache "$out/peerlane" calibrate \
  --json "$results/calibrate_rings.json"
for way in auto off; do
  LIMIT=60 TAIL=28 step "copylat_$way" env "PEERLANE_COPY_ENGINE=$way" "$out/gdrcopy_copylat"
done
printf '%s\n' "${summary[@]}"
exit "$failed"
