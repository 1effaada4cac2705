#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the CPU use of a ping-pong of 128 B that one launch repeats for a whole repetition (graph-loop), beside the same graph launched
# again and again (graph-kernel): both in performance and in economy mode, interleaved. Two GPUs; it builds nothing.
# The table at the end says whether the share of a core is at most 0.5 %, and the time at most 1.02 of that in performance mode.
# A second run of some seconds shows how the time depends on the contents of a pass of the loop. With the build's graph_loop_bench, a part
# on one GPU comes first (15 s): graphs of kernels, launched and repeated, without a peer. ONE_GPU=1: only this part.
#   scripts/gpu/economy_loop.sh <out folder of the build> <results folder> [graph_loop_bench]
# Takes about 3.9 minutes. SECONDS_EACH=5: a first look.
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "?bench=graph_loop_bench" -- "$@"
export LIMIT=300 TAIL=14
program=$out/peerlane
each=${SECONDS_EACH:-50} unroll=${UNROLL:-640} turns=${TURNS:-2}

if [ -n "$bench" ]; then
  LD_LIBRARY_PATH=$out:${LD_LIBRARY_PATH:-} step loop_one_gpu "$bench" --seconds 1 "$results/loop_one_gpu.json"
fi
[ "${ONE_GPU:-0}" = 0 ] || exit "$failed"

# Prints how many iterations take $each seconds, from a short run.
"$program" async economy --arms graph-kernel -s 128 -b "$unroll" -r 1 -i $((unroll * 20)) --json "$results/first.json" >/dev/null 2>&1
count=$(python3 - "$results/first.json" "$each" "$unroll" "$turns" <<'PYTHON'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        took_ns = json.load(file)["rows"][0]["iteration_ns_p50"]
except (OSError, ValueError, LookupError):
    took_ns = 20000
print(min(10_000_000, max(2 * int(sys.argv[3]) * int(sys.argv[4]), int(float(sys.argv[2]) * 1e9 / took_ns))))
PYTHON
)
rm -f "$results/first.json"

loop() { # name, iterations, options...
  local name=$1 iterations=$2
  shift 2
  step "$name" "$program" async economy -s 128 -i "$iterations" "$@" --json "$results/$name.json"
}
loop economy_loop "$count" -b 4096 --unroll "$unroll" -r "$turns" --arms graph-kernel,graph-loop
for pass in 1 8 80; do
  loop "economy_loop_pass_$pass" $((count / 60)) -b 4096 --unroll "$pass" -r 1 --arms graph-loop
done

tidy_results "$results"
echo "=== summary"
printf '%s\n' "${summary[@]}"
python3 - "$results" <<'PYTHON' | tee "$results/economy_loop_table.txt"
import glob, json, os, sys

print(f"{'run':22} {'arm':14} {'mode':12} {'us':>8} {'CPU %':>7} {'sleeps/s':>9}  aims: economy <= 0.5 % and <= 1.02 of performance")
for path in sorted(glob.glob(os.path.join(sys.argv[1], "economy_loop*.json"))):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    for note in result.get("notes", []):
        print(note)
    best = {row["arm"]: row["iteration_ns_p50"] for row in result["rows"] if row["mode"] == "performance"}
    for row in result["rows"]:
        busy, took = row["cpu_busy_percent_p50"], row["iteration_ns_p50"]
        verdict = "" if row["mode"] != "economy" else "met" if busy <= 0.5 and took <= 1.02 * best[row["arm"]] else "MISSED"
        print(f"{os.path.basename(path)[:-5]:22} {row['arm']:14} {row['mode']:12} {took / 1000:8.2f} {busy:7.2f} "
              f"{row['sleeps_per_s_p50']:9.0f}  {verdict}")
PYTHON
exit "$failed"
