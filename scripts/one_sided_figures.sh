#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures put, get and atomics on windows of host memory, by Peerlane and by UCX in interleaved runs, two processes of one host. For
# docs/results/p2p/one_sided_2cpu.
# usage: one_sided_figures.sh <out folder of a build> <results folder>
set -euo pipefail

out=${1:?out folder of a build}
results=${2:?results folder}
mkdir -p "$results"
for name in put_latency get_latency put_bw get_bw fop_latency cas_latency; do
  sizes=(-m 8:1048576)
  case $name in fop_latency | cas_latency) sizes=() ;; esac
  timeout "${PL_SECONDS:-60}" "$out/peerlane" p2p "$name" "${sizes[@]}" -c --via ours,ucx --pct 50,99 --json "$results/$name.json"
done
