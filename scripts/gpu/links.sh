#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what the pages about links claim, on a real GPU: the testcases that nvbandwidth 0.9 and 0.10 added, bulk copies beside other
# methods, bidirectional copy kernels by several divisions of the GPU and by the original's method, copies by DMA channel and in scattered
# blocks, and the gate: a baseline, verdicts, and verdicts while a job runs. NVBANDWIDTH=<program>: the original runs interleaved with ours.
# It builds nothing: it uses the folder that `make build` made. Results (JSON and text) go to the results folder; a short table is last.
# ROUNDS, GATE_RUNS, GATE_ASKS: how many of each (3, 8 and 20); fewer take less time.
#   scripts/gpu/links.sh <out folder of the build> <results folder> [folder of the benches]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results '?bench=folder of the benches' -- "$@"
program=$out/peerlane
size=512M rounds=${ROUNDS:-3} budget=0
[ "$PEERLANE_GPU" = sim ] && size=256K rounds=1 budget=60
ln -sf peerlane "$out/nvbandwidth"

# ---- since 0.8 -------------------------------------------------------------------------------------------------------------
TAIL=90 LIMIT=120 step since_08 "$program" bandwidth -b $size -t 34 35 36 37 38 39 40 41 42 43 --json "$results/since_08.json"
TAIL=30 LIMIT=60 step drop_in "$out/nvbandwidth" -b 128 -t device_local_copy_tma device_local_read_sm device_to_device_memcpy_read_tma
TAIL=30 LIMIT=60 step drop_in_json "$out/nvbandwidth" -b 128 -F json -t 38 39 40 41 43
TAIL=12 LIMIT=60 step huge_pages "$program" bandwidth -b $size -H -t 0 1 16 17 --json "$results/huge_pages.json"

# ---- bidirectional copy kernels: which rate is right? ---------------------------------------------------------------------------
# The original's kernel lets every other warp of the whole GPU copy the other way; ours are two kernels. Two kernels on all
# multiprocessors share each one, as such warps do. Prints the rates of both directions and their sum over the common window.
both_ways() {
  local width line
  for ((round = 1; round <= rounds; ++round)); do
    for width in 0 16 32 66 99; do
      line="H -> [sm:$width] -> G0, G0 -> [sm:$width] -> H"
      [ $width -eq 0 ] && line="H -> [sm] -> G0, G0 -> [sm] -> H"
      "$program" bandwidth -b $size --no-judge --transfer "$line" --json "$results/both_ways_${width}_$round.json" || return 1
    done
    "$program" bandwidth -b $size --no-judge -t 2 18 19 --json "$results/both_ways_ours_$round.json" || return 1
    "$out/nvbandwidth" -b 512 -i 5 -t 2 18 19 --compat-bugs || return 1
    [ -z "${NVBANDWIDTH:-}" ] || "$NVBANDWIDTH" -b 512 -i 5 -t host_to_device_bidirectional_memcpy_ce \
      host_to_device_bidirectional_memcpy_sm device_to_host_bidirectional_memcpy_sm || return 1
  done
}
if [ "$PEERLANE_GPU" != sim ]; then TAIL=120 LIMIT=400 step both_ways both_ways; fi
# Which kernels reach which rate, and whether repeated passes over the same bytes count bytes that did not cross the link.
[ -z "$bench" ] || TAIL=40 LIMIT=90 step both_ways_kernels "$bench/both_ways_bench" "$results/both_ways_kernels.json"

# ---- channels and blocks -------------------------------------------------------------------------------------------------------
TAIL=60 LIMIT=120 step channels "$program" bandwidth -b $size --no-judge -p host_to_device_dma device_to_host_dma host_to_device_bidirectional_dma \
  host_to_device_scattered device_to_host_scattered host_to_device_memcpy_ce device_to_host_memcpy_ce --json "$results/channels.json"

# Scattered blocks on huge pages: is the size of the host's pages the limit?
TAIL=40 LIMIT=60 step scattered_huge "$program" bandwidth -b $size -H --no-judge -p host_to_device_scattered device_to_host_scattered \
  --json "$results/scattered_huge.json"

# ---- the gate ------------------------------------------------------------------------------------------------------------------
baseline=$results/gate_baseline.json
TAIL=12 LIMIT=60 step gate_passive "$program" gate --passive
TAIL=40 LIMIT=60 step gate_by_model "$program" gate --budget $budget --json "$results/gate_by_model.json"
TAIL=14 LIMIT=200 step gate_learn "$program" gate --learn "$baseline" --runs "${GATE_RUNS:-8}" --budget $budget
ask_often() {
  local round unfit=0 asks=${GATE_ASKS:-20}
  for ((round = 1; round <= asks; ++round)); do
    "$program" gate --baseline "$baseline" --budget $budget --output line || unfit=$((unfit + 1))
  done
  echo "$unfit of $asks not fit"
  [ $unfit -eq 0 ]
}
TAIL=24 LIMIT=240 step gate_ask ask_often
TAIL=40 LIMIT=60 step gate "$program" gate --baseline "$baseline" --budget $budget --json "$results/gate.json" --prometheus "$results/gate.prom"
# While a job runs, the gate must not measure.
beside_a_job() {
  "$program" bandwidth -b $size --no-judge -t 0 1 16 17 --samples 200 >"$results/job.txt" 2>&1 &
  local job=$! rc=1
  for _ in $(seq 100); do
    if "$program" gate --baseline "$baseline" --output line | grep "in use: nothing was measured"; then rc=0; break; fi
    kill -0 $job 2>/dev/null || break
  done
  kill -INT $job 2>/dev/null
  wait $job
  return $rc
}
if [ "$PEERLANE_GPU" != sim ]; then TAIL=5 step gate_in_use beside_a_job; fi

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
