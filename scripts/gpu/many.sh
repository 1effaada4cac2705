#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what needs two or more GPUs: clients of one store on two GPUs; DMA channels between GPUs, and kernels that answer each other
# (with the folder of the benches, built with -DPEERLANE_BENCH=ON); every link; messages of several pairs at once; streams on grids; all
# devices in shuffled order. It builds nothing: it uses the folder that `make build` made, and optionally a folder with a UCX that was
# built with CUDA. Results (JSON and text) go to the results folder. STEPS: names of the steps to run, separated by spaces.
#   scripts/gpu/many.sh <out folder of the build> <results folder> [folder of the peer benches] [folder of libucp.so.0]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "?bench=folder of the peer benches" "?ucx=folder of libucp.so.0" -- "$@"
export LIMIT=${LIMIT:-60} TAIL=24
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
all=$(seq -s, 0 $((gpus - 1)))
via=ours
if [ -n "$ucx" ]; then
  use_ucx
  via=ours,ucx
fi

wanted() { [ -z "${STEPS:-}" ] || [[ " $STEPS " = *" $1 "* ]]; }
chosen() { # name, command...: runs the step if STEPS names it
  if wanted "$1"; then step "$@"; fi
}

chosen topo "$program" topo
command -v nvidia-smi >/dev/null && chosen nvidia_smi_topo nvidia-smi topo -m
if [ -n "$bench" ]; then
  LIMIT=100 TAIL=200 chosen dma_peer "$bench/dma_peer_bench" "$results/dma_peer.json"
  LIMIT=30 TAIL=60 chosen device_peer "$bench/device_peer_bench" "$results/device_peer.json"
fi
# All devices at once in reverse order, to find code that assumes an order of devices.
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
chosen sanity every_sanity
LIMIT=150 chosen bandwidth "$program" bandwidth --json "$results/bandwidth.json"
chosen multinode multinode_ranks "$gpus"
chosen mbw_mr "$program" p2p mbw_mr --via $via --launch fork -n "$gpus" --gpus "$all" -m 1K:16M -i 20 -x 5 D D --json "$results/mbw_mr.json"
chosen multi_lat "$program" p2p multi_lat --via $via --launch fork -n "$gpus" --gpus "$all" -m 8:1M -i 300 -x 50 D D --json "$results/multi_lat.json"
for one in $(seq 0 $((gpus - 2))); do
  for other in $(seq $((one + 1)) $((gpus - 1))); do
    chosen "pingpong_${one}_$other" "$program" async pingpong --gpus "$one,$other" -i 2000 -s 128 --json "$results/pingpong_${one}_$other.json"
  done
done
# One server, and clients on GPU 0 and GPU 1: each alone, then both at once.
store_clients() {
  local data server gpu rc=0 running=()
  data=$(mktemp -d)
  "$program" store serve --data "$data/store" --arena 2G --chunk 256M --spin-us 50 >"$data/said" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    grep -q store.sock "$data/said" && break
    sleep 0.1
  done
  store_client() { # GPU, name
    timeout 50 "$program" store gpu-direct-demo --server "$data/store/store.sock" --require-path gpu-direct --gpu "$1" --pool "gpu$1" --rounds 60 \
      --json "$results/store_$2.json" >"$results/store_$2.txt" 2>&1
  }
  for gpu in 0 1; do store_client $gpu "gpu${gpu}_alone" || rc=1; done
  for gpu in 0 1; do
    store_client $gpu "gpu${gpu}_of_two" &
    running+=($!)
  done
  for gpu in 0 1; do wait "${running[$gpu]}" || rc=1; done
  grep -H "Throughput" "$results"/store_gpu*.txt
  kill "$server" && wait "$server"
  rm -rf "$data"
  return $rc
}
chosen store_clients store_clients
chosen latency "$program" p2p latency --via $via --launch fork -n 2 --gpus 0,1 -m 8:4M -i 500 -x 50 D D --json "$results/latency.json"
chosen bw "$program" p2p bw --via $via --launch fork -n 2 --gpus 0,1 -m 1K:16M -i 20 -x 5 D D --json "$results/bw.json"
chosen stencil_2x1 "$program" async stencil --grid 2x1 --gpus 0,1 --arms normal,peer,peer-kernel,proxy -n 64,256,1024,4096 -i 300 -r 3 \
  --json "$results/stencil_2x1.json"
chosen multigrid_2x1 "$program" async multigrid --gpus 0,1 --arms normal,peer,peer-kernel,proxy -n 64,256,1024 --json "$results/multigrid_2x1.json"
if [ "$gpus" -ge 4 ]; then
  chosen stencil_2x2 "$program" async stencil --grid 2x2 --gpus "$all" --arms normal,peer,peer-kernel,proxy -n 64,256,1024,4096 -i 300 -r 3 \
    --json "$results/stencil_2x2.json"
  chosen stencil_row "$program" async stencil --grid "${gpus}x1" --gpus "$all" --arms normal,peer,peer-kernel -n 256 -i 300 -r 3 \
    --json "$results/stencil_row.json"
fi

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
