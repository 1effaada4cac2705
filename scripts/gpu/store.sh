#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the store with a GPU: puts and gets of 128 MiB by one copy (shm-direct) beside the link's rate in the same run, durable puts
# beside the disk's own rate without the page cache, and gets of 4 KiB. Less than a minute on an H100. It builds nothing: it uses the
# folder that `make build` made (default: BUILD/out of the current tree). Results (JSON and text) go to the results folder.
# STORE_BENCH: the program store_bench (-DPEERLANE_BENCH=ON), which measures the engine alone, and the disk with the same io_uring code.
#   scripts/gpu/store.sh <results folder> [<out folder of the build>]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments results "?out=out folder of the build" -- "$@"
out=${out:-$(realpath "$here/../../build/release/out")}
export LIMIT=40 TAIL=8
program=$out/peerlane
data=$(mktemp -d "${STORE_DATA:-$results}/data-XXXXXX")
trap 'rm -rf "$data"' EXIT

# The disk's own rate: 128 MiB at a time without the page cache, each made durable; MB/s, the best of three.
disk_rate() {
  local best=0 rate
  for _ in 1 2 3; do
    rate=$(LC_ALL=C dd if=/dev/zero of="$data/rate" bs=16M count=8 oflag=direct conv=fdatasync 2>&1 |
      python3 -c 'import re, sys; s = sys.stdin.read(); m = re.search(r"([\d.]+) s,", s); print(int(134.217728 / float(m.group(1))) if m else 0)')
    [ "$rate" -gt "$best" ] && best=$rate
  done
  rm -f "$data/rate"
  echo "$best"
}

demo() { # name, options...
  local name=$1
  shift
  step "$name" "$program" store gpu-direct-demo --data "$data/$name" --require-path shm-direct --json "$results/$name.json" "$@"
  rm -rf "${data:?}/$name"
}

demo shm_volatile_128M --size 128M --rounds 20
disk=$(disk_rate)
demo shm_durable_128M_1 --size 128M --rounds 20 --durability durable
if [ -n "${STORE_BENCH:-}" ]; then
  step engine_durable_128M "$STORE_BENCH" --dir "$data/engine" --only large --large-rounds 5 --json "$results/engine_durable_128M.json"
  demo shm_durable_128M_2 --size 128M --rounds 20 --durability durable
fi
demo shm_volatile_1M --size 1M --rounds 200
# Interleaved: requests through rings in shared memory, and by system calls on the socket.
for turn in 1 2 3; do
  demo shm_volatile_4K_rings_$turn --size 4K --rounds 5000
  PEERLANE_STORE_RINGS=0 demo shm_volatile_4K_socket_$turn --size 4K --rounds 5000
done
step unix_volatile_128M "$program" store gpu-direct-demo --data "$data/unix" --no-shm --size 128M --rounds 4 --json "$results/unix_volatile_128M.json"

# Values of 4 KiB in host memory, with this many requests in progress.
under_way() { # rings (1 or 0), depth
  local name=host_4K_rings_$1_depth_$2
  PEERLANE_STORE_RINGS=$1 step "$name" "$program" store perf --test put get --value_length 4K --depth "$2" --elements 10000 \
    --duration "$seconds" --durability volatile --json "$results/$name.json"
}
seconds=1
for depth in 1 16 64; do
  for rings in 1 0; do under_way $rings $depth; done
done

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
python3 - "$results" "$disk" <<'PYTHON'
import json, os, sys

folder, disk = sys.argv[1], float(sys.argv[2]) / 1000
print(f"{'run':<26} {'way':<4} {'GB/s':>8} {'of link':>8} {'p50 us':>10} {'p99 us':>10}  path, durability")
turns = [f"shm_volatile_4K_{how}_{turn}" for turn in (1, 2, 3) for how in ("rings", "socket")]
durable = ("shm_durable_128M_1", "shm_durable_128M_2")
bench = os.path.join(folder, "engine_durable_128M.json")
direct = 0
if os.path.exists(bench):
    with open(bench, encoding="utf-8") as file:
        direct = next(row["median"] for row in json.load(file)["rows"] if row["contender"] == "O_DIRECT, one after the other")
for name in ("shm_volatile_128M", *durable, "shm_volatile_1M", *turns, "unix_volatile_128M"):
    path = os.path.join(folder, name + ".json")
    if not os.path.exists(path):
        print(f"{name:<26} no result")
        continue
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    for row in result["rows"]:
        if row.get("kind") != "transfer":
            continue
        print(f"{name:<26} {row['direction']:<4} {row['bandwidth_gb_per_s']:8.2f} {100 * row['ratio_to_link']:7.1f}% "
              f"{row['latency_ns_p50'] / 1000:10.1f} {row['latency_ns_p99'] / 1000:10.1f}  {row['path']}, {row['durability']}")
        for rate, how in ((disk, "dd"), (direct, "io_uring")):
            if name in durable and row["direction"] == "put" and rate > 0:
                print(f"{'':<26} the disk takes {rate:.2f} GB/s past the page cache by {how}: {100 * row['bandwidth_gb_per_s'] / rate:.0f} %")
PYTHON
for file in "$results"/host_4K_*.txt; do
  sed -n "/op\/s/s|^|$(basename "$file" .txt)  |p" "$file" | cut -c1-110
done
exit "$failed"
