#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures kernels of two processes that put into each other's remote windows, each process with a GPU: by UCX over TCP, as between two
# hosts, and by the transports of one host; messages for comparison. Two GPUs; it builds nothing. About 40 s.
#   scripts/gpu/remote.sh <out folder of the build> <results folder> <folder of device_remote_bench> [<folder of pack_ucx.sh>]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "bench=folder of device_remote_bench (-DPEERLANE_BENCH=ON)" "?ucx=folder that pack_ucx.sh made" -- "$@"
export LIMIT=45 TAIL=20 LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -z "$ucx" ] || use_ucx

PEERLANE_LINK_PATH=network step network "$bench/device_remote_bench" --json "$results/network.json"
step one_host "$bench/device_remote_bench" --json "$results/one_host.json"

tidy_results "$results"
echo "=== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
