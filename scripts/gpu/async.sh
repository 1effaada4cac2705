#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures streams that signal each other against a CPU between kernel and message, on two GPUs if there are two: every benchmark of
# docs/async-benchmarks.md. Takes about 100 s on two H200. Prints a table of the figures with targets at the end. It builds nothing: it
# uses the folder that `make build` made. Results (JSON and text) go to the results folder.
#   scripts/gpu/async.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
export LIMIT=60 TAIL=40
program=$out/peerlane

async() { # name, benchmark, options...
  local name=$1 benchmark=$2
  shift 2
  step "$name" "$program" async "$benchmark" "$@" --json "$results/$name.json"
}

async pingpong pingpong --arms normal,peer,peer-kernel,proxy,proxy-kernel,graph,graph-kernel -i 2000 -s 128 -k 0,5,10,20,50,200
async pingpong_sizes pingpong --arms normal,peer,proxy,graph-kernel -i 500 -s 8,128,1K,8K,16K,64K,256K,1M,4M
# Large puts of the proxy: by one kernel or by the copy engine, and how large its chunks should be.
PEERLANE_STREAM_SPREAD=0 async pingpong_no_spread pingpong --arms normal,proxy -i 300 -s 16K,64K,256K
for chunk in 16K 32K 128K; do
  PEERLANE_STREAM_CHUNK=$chunk async "pingpong_chunk_$chunk" pingpong --arms normal,proxy -i 200 -s 512K,1M,4M
done
for batch in 1 4 16; do
  async "pingpong_batch_$batch" pingpong --arms normal,proxy,proxy-kernel -b "$batch" -i 3000
done
PEERLANE_LINK_PATH=network UCX_TLS=tcp async pingpong_tcp pingpong --arms normal,proxy -i 1000 -s 128,64K
for chunk in 32K 64K 128K; do
  PEERLANE_STREAM_CHUNK=$chunk PEERLANE_LINK_PATH=network UCX_TLS=tcp async "pingpong_tcp_$chunk" \
    pingpong --arms normal,proxy -i 200 -s 256K,1M
done
async pingpong_one_gpu pingpong --gpus 0,0 --arms normal,peer,peer-kernel,dma,proxy -i 500
async pingpong_one_gpu_sizes pingpong --gpus 0,0 --arms normal,peer,dma,proxy -i 200 -s 8,8K,64K,256K,1M,4M
async kernel_put kernel-put
PEERLANE_DEVICE_RINGS=proxy async kernel_put_proxy kernel-put -i 50 -n 3000
async hostfn pingpong --arms normal,hostfn -i 400
# Separately: while there are proxy channels, the proxy thread spins in performance mode, whatever the arm.
async economy economy --arms peer,graph-kernel -i 6000 -k 0,10,50
async economy_proxy economy --arms proxy,proxy-kernel -i 6000 -k 0,10,50
async economy_proxy_80 economy --arms proxy,proxy-kernel -b 80 -i 8000
async economy_80 economy --arms graph-kernel -b 80 -i 8000 -k 0,10
# Cost of a thread that replays graphs, by launches and by events: more launches for each event, then longer graphs.
async economy_640_80 economy --arms graph-kernel -b 640 --unroll 80 -i 32000 -k 0,10
async economy_640 economy --arms graph-kernel -b 640 -i 32000 -k 0,10

async stencil_2x1 stencil --arms normal,peer,peer-kernel,proxy,graph-kernel -n 16,64,256,1024,4096
async multigrid_2x1 multigrid --arms normal,peer,peer-kernel,proxy,graph-kernel -n 16,64,256,1024
# Long kernels and halos of 32 and 64 KiB, where the gain becomes small and then zero.
async multigrid_large multigrid --arms normal,peer -n 4096 -i 20 -r 3
async stencil_no_gain stencil --arms normal,peer -n 8192 -i 40 -r 3
async stencil_2x2 stencil --grid 2x2 --arms normal,peer -n 64,256 -i 100 -r 3

async stopped stopped
async stuck stuck
CUDA_DEVICE_MAX_CONNECTIONS=32 async stuck_32_queues stuck
CUDA_DEVICE_MAX_CONNECTIONS=32 async poke poke --stuck 0,8,31
async cost cost

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
echo "=== what the targets ask for"
python3 "$(dirname "$0")/async_table.py" "$results" | tee "$results/table.txt"
exit "$failed"
