#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures the MPI library with the distribution's Open MPI, built without CUDA: latency and bandwidth of device memory,
# interleaved with Peerlane's own messages (and those of UCX and NCCL if available), and mpi4py's examples with arrays on the GPU. Two
# ranks, on two GPUs or both on one. It builds nothing and needs no MPI: it uses the folder that `make build` made, and the one that
# scripts/gpu/pack_mpi.sh made. Less than a minute. Results (JSON and text) go to the results folder.
#   scripts/gpu/shim.sh <out folder of the build> <results folder> <folder of pack_mpi.sh> [folder of libucp.so.0]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "mpi=folder of pack_mpi.sh" "?ucx=folder of libucp.so.0" -- "$@"
export LIMIT=25 TAIL=30
# shellcheck source=/dev/null
. "$mpi/env.sh"
program=$out/peerlane
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
pair=0,$((gpus > 1))

arms=ours,shim
if [ -n "$ucx" ]; then
  export UCX_MODULE_DIR=$ucx/ucx PEERLANE_UCX_LIBRARY=$ucx/libucp.so.0 LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$ucx UCX_WARN_UNUSED_ENV_VARS=n
  arms=$arms,ucx
fi
find_nccl
if [ -n "$PEERLANE_NCCL_LIBRARY" ] && [ "$gpus" -gt 1 ]; then arms=$arms,nccl; fi

export PEERLANE_COPY_ENGINE=${PEERLANE_COPY_ENGINE:-auto}
# Two ranks that poll need two CPUs. They get their environment from here: mpirun on one machine passes it on.
ranks=(mpirun -n 2 --oversubscribe -x PEERLANE_COPY_ENGINE -x "LD_PRELOAD=$out/libpeerlane-mpi-ompi.so")
p2p() { # name, benchmark, options...
  local name=$1 benchmark=$2
  shift 2
  step "$name" "${ranks[@]}" "$program" p2p "$benchmark" "$@" --gpus "$pair" --json "$results/$name.json"
}

p2p shim_latency latency --via shim -m 1:1M -i 1000 -x 100 --pct 50,99 D D
p2p shim_check latency --via shim -m 1:4M -i 20 -x 2 -c D D
p2p arms_latency latency --via "$arms" -m 8:4M -i 300 -x 50 --pct 50 D D
p2p arms_bandwidth bw --via "$arms" -m 8:4M -i 20 -x 2 -W 16 D D
# Large messages by the pipeline, and by direct reads of the receiver's copy engine if possible.
export PEERLANE_MPI_PIPELINE=256M PEERLANE_MPI_PIPELINE_FROM=8K
p2p pipelined_latency latency --via ours,shim -m 4K:64M -i 200 -x 20 --pct 50,99 D D
p2p pipelined_bandwidth bw --via ours,shim -m 4K:16M -i 20 -x 2 -W 16 D D
p2p pipelined_check latency --via shim -m 4K:16M -i 20 -x 2 -c D D
PEERLANE_COPY_ENGINE=kernel p2p pipelined_without_channels latency --via shim -m 4K:16M -i 50 -x 5 D D
unset PEERLANE_MPI_PIPELINE PEERLANE_MPI_PIPELINE_FROM
export TAIL=60
# The arrays are CuPy's if this machine's Python has it, else PyTorch's; on the simulated GPU, memory of libcuda.
examples=("$here/mpi_examples.py")
if [ "$PEERLANE_GPU" = sim ]; then
  examples+=(driver)
  export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$out/sim
fi
# If the kernel refuses process_vm_readv, Open MPI 4.1 creates windows only with these settings, and not for MPI_THREAD_MULTIPLE.
export OMPI_MCA_osc=pt2pt,sm MPI4PY_RC_THREAD_LEVEL=serialized
ranks+=(-x MPI4PY_RC_THREAD_LEVEL)
step mpi4py "${ranks[@]}" python3 -B "${examples[@]}"
if [ "$PEERLANE_GPU" != sim ]; then step mpi4py_torch "${ranks[@]}" python3 -B "${examples[@]}" torch; fi

echo "=== summary"
echo "$(python3 --version 2>&1), $(ldd --version | head -1), NCCL: ${PEERLANE_NCCL_LIBRARY:-none found}, arms: $arms"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
