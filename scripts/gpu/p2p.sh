#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures messages between GPU buffers of two processes with OSU's benchmarks: Peerlane interleaved with UCX alone (and with NCCL if Python
# has it). With two GPUs, one for each process; otherwise both processes use one. It builds nothing: it uses the folder that `make build`
# made, and a folder with a UCX that was built with CUDA (pack_ucx.sh makes one). Results (JSON and text) go to the results folder.
#   scripts/gpu/p2p.sh <out folder of the build> <results folder> <folder of libucp.so.0>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "ucx=folder of libucp.so.0" -- "$@"
use_ucx
export LIMIT=40
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')

p2p() { # name, benchmark, options...
  local name=$1 benchmark=$2
  shift 2
  step "$name" "$program" p2p "$benchmark" "$@" --launch fork --pct 50,99 --json "$results/$name.json"
}

export TAIL=30
"$program" p2p latency -m 8:8 -i 100 --show-plan D D >"$results/plan.txt" 2>&1
cat "$results/plan.txt"
p2p one_gpu_latency latency --via ours --gpus 0,0 -m 1:1M -i 1000 -x 100 D D
p2p one_gpu_latency_ucx latency --via ours,ucx --gpus 0,0 -m 8:64K -i 200 -x 20 D D
p2p one_gpu_check latency --via ours --gpus 0,0 -m 1:1M -i 20 -x 2 -c D D
p2p host_latency latency --via ours,ucx -m 8:64K -i 2000 -x 200 H H
pair=0,$((gpus > 1))
p2p host_to_device latency --via ours,ucx --gpus "$pair" -m 8:64K -i 300 -x 50 H D
if [ "$gpus" -gt 1 ]; then
  find_nccl
  arms=ours,ucx${PEERLANE_NCCL_LIBRARY:+,nccl}
  p2p latency latency --via "$arms" --gpus 0,1 -m 1:64M -i 1000 -x 100 D D
  p2p check latency --via ours --gpus 0,1 -m 1:16M -i 20 -x 2 -c D D
  p2p bandwidth bw --via "$arms" --gpus 0,1 -m 1:64M -i 40 -x 5 D D
  p2p bidirectional bibw --via "$arms" --gpus 0,1 -m 1K:64M -i 20 -x 5 D D
  # The upper limit: the rate of the copy engine for copies of the same sizes.
  TAIL=40 step copy_engine "$program" bandwidth --size-sweep 1M:64M -t device_to_device_memcpy_read_ce \
    device_to_device_memcpy_write_ce --samples 3 --json "$results/copy_engine.json"
fi
# Medium sizes between every two kinds of memory. Bandwidths come last and have few iterations, because they take longest.
middle() { # name, benchmark, largest size, memories...
  local name=$1 benchmark=$2 most=$3 turns=(-i 5 -x 2)
  shift 3
  [ "$benchmark" = bw ] || turns=(-i 100 -x 20)
  p2p "$name" "$benchmark" --via ours,ucx --gpus "$pair" -m "16K:$most" "${turns[@]}" "$@"
}
middle middle_latency_HH latency 8M H H
middle middle_latency_HD latency 8M H D
middle middle_bw_HH bw 4M H H
middle middle_bw_HD bw 4M H D
middle middle_bw_DH bw 4M D H
# One table of all: the ratio of Peerlane to UCX, which should be at least 0.95.
ratios() {
  local name
  for name in latency bandwidth middle_latency_HH middle_latency_HD middle_bw_HH middle_bw_HD middle_bw_DH; do
    [ ! -f "$results/$name.txt" ] || awk -v name="$name" '$1 ~ /^[0-9]+$/ && $1 >= 8192 && $2 > 0 && $3 > 0 {
      print name, $1, name ~ /latency/ ? $3 / $2 : $2 / $3 }' "$results/$name.txt"
  done | awk '
    !($1 in column) { column[$1] = ++columns; names[columns] = $1 }
    { value[$2, column[$1]] = $3; if ($2 > most) most = $2 }
    END {
      printf "%10s", "bytes"
      for (i = 1; i <= columns; i++) { sub(/^middle_/, "", names[i]); printf " %11s", names[i] }
      print ""
      for (size = 8192; size <= most; size *= 2) {
        printf "%10d", size
        for (i = 1; i <= columns; i++) printf " %11s", (size, i) in value ? sprintf("%.2f", value[size, i]) : "-"
        print ""
      }
    }'
}
step ratios ratios
# As between two hosts: TCP, over loopback.
UCX_TLS=tcp,cuda_copy,self PEERLANE_LINK_PATH=network p2p network_latency latency --via ours,ucx --gpus "$pair" -m 8:1M \
  -i 200 -x 20 D D
UCX_TLS=tcp,cuda_copy,self PEERLANE_LINK_PATH=network p2p network_large latency --via ours,ucx --gpus "0,$((gpus > 1))" \
  -m 2M:64M -i 10 -x 2 D D

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
