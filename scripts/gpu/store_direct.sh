#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares who moves GPU memory of the store: puts and gets of one value, and of many by one call, by the server's DMA channels (gpu-direct)
# and by the client (PEERLANE_STORE_GPU_DIRECT=off), interleaved on one machine. Also checks that the server of the first run has not
# loaded CUDA. About 90 s. It builds nothing: it uses the folder that `make build` made.
#   scripts/gpu/store_direct.sh <results folder> [<out folder of the build>]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments results "?out=out folder of the build" -- "$@"
out=${out:-$(realpath "$here/../../build/release/out")}
export LIMIT=25 TAIL=2
program=$out/peerlane
data=$(mktemp -d "${STORE_DATA:-$results}/data-XXXXXX")
trap 'rm -rf "$data"' EXIT

demo() { # how, name, options...
  local how=$1 name=$2_$1
  shift 2
  local require=()
  [ "$how" = client ] || require=(--require-path gpu-direct)
  PEERLANE_STORE_GPU_DIRECT=$([ "$how" = client ] && echo off || echo on) \
    step "$name" "$program" store gpu-direct-demo --data "$data/$name" "${require[@]}" --json "$results/$name.json" "$@"
  rm -rf "${data:?}/$name"
}

# Lists the libraries of a server that has moved a value.
server_libraries() {
  local server maps=$results/server_libraries.txt
  "$program" store serve --data "$data/look" --arena 64M --chunk 16M --spin-us 50 >"$data/said" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    grep -q TCP "$data/said" && break
    sleep 0.1
  done
  timeout 20 "$program" store gpu-direct-demo --server "$data/look/store.sock" --size 1M --rounds 2 --require-path gpu-direct >"$data/did" 2>&1
  tail -3 "$data/did"
  grep -oE '/[^ ]*\.so[^ ]*' "/proc/$server/maps" | sort -u >"$maps"
  kill "$server" && wait "$server"
  if grep -q 'libcuda\|libnvidia' "$maps"; then
    echo "the server has CUDA in its memory: $(grep 'libcuda\|libnvidia' "$maps")"
    return 1
  fi
  grep -q 'gpu-direct, volatile' "$data/did" && echo "the server moved it, without CUDA in its memory"
}

step server server_libraries
for turn in 1 2 3; do
  for how in direct client; do
    demo "$how" "4K_$turn" --size 4K --rounds 3000
    demo "$how" "64K_$turn" --size 64K --rounds 1000
    demo "$how" "1M_$turn" --size 1M --rounds 300
    for size in 4K 16K 64K; do demo "$how" "many_${size}_$turn" --size "$size" --values 4096 --rounds 20; done
    [ "$turn" = 1 ] || demo "$how" "128M_$turn" --size 128M --rounds 20
  done
done

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
python3 - "$results" <<'PYTHON'
import json, os, sys

folder = sys.argv[1]
print(f"{'values':<12} {'way':<4} {'turn':>4}  {'by the store: us p50, p99':>28} {'GB/s':>7}  {'by the client: us p50, p99':>28} {'GB/s':>7}  of link")
for name in ("4K", "64K", "1M", "many_4K", "many_16K", "many_64K", "128M"):
    for way in ("put", "get"):
        for turn in (1, 2, 3):
            cells, link = [], 0
            for how in ("direct", "client"):
                path = os.path.join(folder, f"{name}_{turn}_{how}.json")
                if not os.path.exists(path):
                    cells.append(f"{'-':>28} {'-':>7}")
                    continue
                with open(path, encoding="utf-8") as file:
                    row = next(one for one in json.load(file)["rows"] if one.get("direction") == way)
                text = f"{row['latency_ns_p50'] / 1000:.1f}, {row['latency_ns_p99'] / 1000:.1f}"
                cells.append(f"{text:>28} {row['bandwidth_gb_per_s']:7.2f}")
                if how == "direct":
                    link = row["ratio_to_link"]
            print(f"{name:<12} {way:<4} {turn:>4}  {cells[0]}  {cells[1]}  {100 * link:.1f} %")
PYTHON
exit "$failed"
