#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the copy envelope on a real GPU: calibrates, then measures every copy method, the planner and cuMemcpy from 1 B to 1 GiB with
# that calibration, the cost of a resident copy kernel for other work, and lists and asynchronous copies. Prints a short table at the end.
# It builds nothing: it uses the folder that `make build` made. Results (JSON and text) go to the results folder. About four minutes;
# --quick: about one (up to 64 MiB, short samples).
#   scripts/gpu/envelope.sh [--quick] <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
quick=0
[ "${1:-}" = --quick ] && quick=1 && shift
arguments out results -- "$@"
export XDG_CACHE_HOME="$results/cache"

program=$out/peerlane
sweep() { # name, options...
  local name=$1
  shift
  step "$name" "$program" copy --odd --time "$time_ms" --samples "$samples" --max "$most" --all "$@" --json "$results/$name.json"
}

# 31 powers of two and 15 other sizes, five or six cases; sizes of 100 MiB and more have three rounds, however long they take.
time_ms=200 samples=2000 most=1G beside=300
[ $quick = 1 ] && time_ms=100 samples=500 most=64M beside=100
[ "$PEERLANE_GPU" = sim ] && time_ms=20 samples=100 most=1M beside=10

TAIL=45 step calibrate "$program" calibrate --json "$results/calibrate.json"
echo "=== calibration file"
cat "$XDG_CACHE_HOME"/peerlane/calibration-*.txt | tee "$results/calibration.txt"
sweep copy_h2d --direction h2d
sweep copy_d2h --direction d2h
sweep copy_d2d --direction d2d
TAIL=20 step copy_beside "$program" copy --beside --samples "$beside" --json "$results/copy_beside.json"
TAIL=30 step copy_async "$program" copy --async --time "$time_ms" --json "$results/copy_async.json"
gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
[ "$gpus" -gt 1 ] && sweep copy_p2p --direction p2p

echo "=== summary"
printf '%s\n' "${summary[@]}"
python3 - "$results" <<'PYTHON'
import glob, json, os, sys
cases = {}
for path in sorted(glob.glob(os.path.join(sys.argv[1], "copy_*.json"))):
    with open(path, encoding="utf-8") as file:
        for row in json.load(file)["rows"]:
            if row.get("kind") == "envelope":
                cases.setdefault((row["direction"], row["memory"]), []).append(row)
for (direction, memory), rows in cases.items():
    for row in rows:
        if row["exceeds"] and os.environ.get("PEERLANE_GPU") != "sim":
            print(f"above the envelope: {direction} {memory} {row['size_bytes']} B: {row['again_planner_ns'] / 1e3:.4g} us by "
                  f"{row['choice']}, {row['again_best_ns'] / 1e3:.4g} us by {row['best_method']}, {row['ratio']:.2f} x "
                  f"({row['ratio_low']:.2f} to {row['ratio_high']:.2f})")
print(f"{'case':<14} {'sizes':>5} {'again':>5} {'above':>5} {'worst':>6}  planner us at 64 B, 4 KiB, 64 KiB, 1 MiB, 64 MiB")
for (direction, memory), rows in cases.items():
    at = {row["size_bytes"]: row["planner_ns"] / 1e3 for row in rows}
    worst = max(rows, key=lambda row: row["ratio"])
    shown = "  ".join(f"{at[size]:.3g}" if size in at else "-" for size in (64, 4096, 65536, 1 << 20, 64 << 20))
    print(f"{direction + ' ' + memory:<14} {len(rows):5} {sum(row['repeated'] for row in rows):5} {sum(row['exceeds'] for row in rows):5} {worst['ratio']:6.2f}  {shown}")
PYTHON
tidy_results "$results"
exit "$failed"
