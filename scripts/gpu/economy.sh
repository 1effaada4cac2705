#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the CPU use of a ping-pong of 128 B that graphs carry for a minute, on two GPUs: by stores of kernels and by copy engines, with
# threads that spin and threads that sleep, the ring's thread by interrupts and by the clock. Then the same for two seconds under
# `strace -c`, if installed: system calls by thread. Also shows the energy of the CPU package if the machine provides it. The table at
# the end says whether the share of a core is at most 0.5 %, and the time at most 1.02 of that in performance mode. It builds nothing.
#   scripts/gpu/economy.sh <out folder of the build> <results folder>
# Takes about 8 minutes. SECONDS_EACH=5: a first look. BATCH=32: for the simulated GPU.
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
export LIMIT=400 TAIL=12
program=$out/peerlane
each=${SECONDS_EACH:-60} batch=${BATCH:-4096}

energy_uj() { # of all CPU packages; empty if the machine does not provide it
  local zone sum=0
  for zone in /sys/class/powercap/intel-rapl:*/energy_uj; do
    case $zone in
      */intel-rapl:*:*) ;; # a part of a package
      *) [ ! -r "$zone" ] || sum=$((sum + $(cat "$zone"))) ;;
    esac
  done
  [ "$sum" = 0 ] || echo "$sum"
}

economy() { # name, wake-ups, iterations, options...
  local name=$1 wakeups=$2 count=$3 before after
  shift 3
  before=$(energy_uj)
  PEERLANE_DEVICE_WAKEUPS=$wakeups step "$name" "$program" async economy -s 128 -b "$batch" -r 1 -i "$count" "$@" --json "$results/$name.json"
  after=$(energy_uj)
  if [ -n "$before" ]; then
    echo "package energy, both modes: $(((after - before) / 1000)) mJ" | tee -a "$results/$name.txt"
  else
    echo "package energy: this machine does not show it" | tee -a "$results/$name.txt"
  fi
}

iterations() { # prints how many take $each seconds, from a short run of the arm
  "$program" async economy -s 128 -b "$batch" -r 1 -i $((batch * 4)) --arms "$1" --json "$results/first.json" >/dev/null 2>&1
  python3 - "$results/first.json" "$each" "$batch" <<'PYTHON'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        took_ns = json.load(file)["rows"][0]["iteration_ns_p50"]
except (OSError, ValueError, LookupError):
    took_ns = 20000
print(min(10_000_000, max(2 * int(sys.argv[3]), int(float(sys.argv[2]) * 1e9 / took_ns))))
PYTHON
  rm -f "$results/first.json"
}

by_stores=$(iterations graph-kernel) by_engine=$(iterations graph-dma)
economy economy_minute_kernel off "$by_stores" --arms graph-kernel
economy economy_minute_dma on "$by_engine" --arms graph-dma
economy economy_minute_dma_clock off "$by_engine" --arms graph-dma
if command -v strace >/dev/null; then
  for wakeups in on off; do
    PEERLANE_DEVICE_WAKEUPS=$wakeups TAIL=30 step "calls_$wakeups" strace -f -c -S calls "$program" async economy -s 128 -b "$batch" -r 1 \
      -i $((by_engine * 2 / each + batch)) --arms graph-dma
  done
fi

tidy_results "$results"
echo "=== summary"
printf '%s\n' "${summary[@]}"
python3 - "$results" <<'PYTHON' | tee "$results/economy_table.txt"
import glob, json, os, sys

print(f"{'run':28} {'mode':12} {'us':>8} {'ratio':>7} {'CPU %':>7} {'sleeps/s':>9}  aims: economy <= 0.5 % and <= 1.02")
for path in sorted(glob.glob(os.path.join(sys.argv[1], "economy_minute_*.json"))):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    first = rows[0]["iteration_ns_p50"]
    for row in rows:
        busy, ratio = row["cpu_busy_percent_p50"], row["iteration_ns_p50"] / first
        verdict = "" if row["mode"] != "economy" else "met" if busy <= 0.5 and ratio <= 1.02 else "MISSED"
        print(f"{os.path.basename(path)[:-5]:28} {row['mode']:12} {row['iteration_ns_p50'] / 1000:8.2f} {ratio:7.3f} {busy:7.2f} "
              f"{row['sleeps_per_s_p50']:9.0f}  {verdict}")
PYTHON
exit "$failed"
