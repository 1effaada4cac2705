#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Finds out why a round trip of the dma executor takes 2 ms if two processes share a GPU: turns of the copy engine, turns of the
# processes' kernels, or a thread that sleeps. First puts of one process beside another's idle ring or kernel (bench/device_turns_bench, which says
# what each result would mean), then the round trip itself: rings with the driver's time slice, and with their own.
# It builds nothing (device_turns_bench: -DPEERLANE_BENCH=ON). About 30 s.
#   scripts/gpu/turns.sh <out folder of the build> <folder of device_turns_bench> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out "bench=folder of device_turns_bench" results -- "$@"
export LIMIT=60 TAIL=14

step turns "$bench/device_turns_bench" "$results/turns.json"
for slice in 0 2; do
  PEERLANE_DEVICE_TIMESLICE_US=$slice step "round_trip_slice_$slice" \
    "$out/peerlane" async pingpong --gpus 0,0 --arms normal,peer,dma -i 200 -s 8,64K,1M --json "$results/round_trip_slice_$slice.json"
done
tidy_results "$results"
echo "=== summary"
printf '%s\n' "${summary[@]}"
[ ! -e "$results/turns.json" ] || python3 - "$results" <<'PYTHON' | tee "$results/turns_table.txt"
import json, os, sys

with open(os.path.join(sys.argv[1], "turns.json"), encoding="utf-8") as file:
    single = {row["other_process"]: row["put_us_mean"] for row in json.load(file)["rows"] if row["puts"] == "single"}
quiet = single["nothing"]
slow = [scene for scene, us in single.items() if us > 10 * quiet]
print(f"single puts, mean: {quiet:.2f} us with nothing beside them; more than ten times that beside: {', '.join(slow) or 'nothing'}")
if quiet > 100:
    print("slow without another process: a thread that sleeps, or the ring itself")
elif "same" in slow and "other" not in slow:
    print("turns of the copy engine: an idle ring holds it. Round trips must be quick with short slices")
elif "kernel" in slow:
    print("turns of the processes' kernels")
else:
    print("neither: look at the round trips above")
PYTHON
exit "$failed"
