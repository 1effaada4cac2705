#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures collectives of Peerlane and of an MPI in interleaved runs, two ranks on two CPUs. For docs/results/collectives.
# usage: collectives_figures.sh <out folder of a build> <results folder> [mpirun of Open MPI] [mpiexec of MPICH]
set -euo pipefail

out=${1:?out folder of a build}
results=${2:?results folder}
openmpi=${3:-mpirun.openmpi}
mpich=${4:-mpiexec.mpich}
mkdir -p "$results"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

measure() { # <kind of MPI> <launcher and its options...>
  local kind=$1 name
  shift
  for name in barrier bcast gather scatter allgather reduce allreduce reduce_scatter alltoall alltoallv; do
    local sizes=(-m 4:1048576)
    if [ "$name" = barrier ]; then sizes=(); fi
    echo "== $name beside $kind"
    "$@" "$out/osu_$name" "${sizes[@]}" -i "${PL_ITERATIONS:-1000}" -x 50 --via ours,mpi --pct 50,99 \
      --json "$results/${kind}_$name.json" || echo "failed: $name beside $kind" >&2
  done
}
measure openmpi "$openmpi" -n 2 --bind-to core
measure mpich "$mpich" -n 2 -bind-to core
