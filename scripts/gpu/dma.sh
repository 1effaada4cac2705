#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DMA channels on a real GPU: checked and timed beside CUDA's copies, as root and as a user without rights, and what is left after
# processes that were killed in the middle. It builds nothing (bench/dma_bench: -DPEERLANE_BENCH=ON).
#   scripts/gpu/dma.sh <dma_bench> <results folder>
set -u
if [ $# -ne 2 ]; then
  echo "usage: $0 <dma_bench> <results folder>" >&2
  exit 2
fi
bench=$(realpath "$1")
mkdir -p "$2"
results=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$here/steps.sh"
cp "$bench" /tmp/dma_bench && chmod 755 /tmp/dma_bench

killed() { # eight at a time, each in the middle of something; then the GPU must be as it was
  local before after
  before=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader)
  for _ in 1 2 3 4 5 6 7 8; do (timeout -s KILL "$((RANDOM % 3 + 1))" /tmp/dma_bench >/dev/null 2>&1 &); done
  sleep 5
  after=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader)
  echo "GPU memory in use before and after eight killed processes: $before, $after"
  [ "$before" = "$after" ] && timeout 100 /tmp/dma_bench | tail -1
}
LIMIT=120 TAIL=60 step dma "$bench" "$results/dma.json"
LIMIT=120 TAIL=8 step dma_nobody "${nobody[@]}" /tmp/dma_bench
LIMIT=150 TAIL=4 step dma_killed killed
printf '%s\n' "${summary[@]}"
exit "$failed"
