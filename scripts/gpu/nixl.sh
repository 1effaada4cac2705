#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the NIXL backend on a real GPU with two agents of one GPU: rates of scattered blocks, a transfer of 64 bytes, 10^5 descriptors,
# with every byte checked; the same by the UCX backend of NIXL's wheel; with two GPUs, transfers between them and the transfer of a cache;
# an agent that is killed during a transfer. It builds nothing and needs no network.
#   scripts/gpu/nixl.sh <folder that pack_nixl.sh made> <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "wheel=folder of NIXL's wheel" out results -- "$@"
export PYTHONPATH=$wheel PYTHONDONTWRITEBYTECODE=1
options=()
[ "$PEERLANE_GPU" = sim ] && options=(--quick) && export LD_LIBRARY_PATH=$out/sim

TAIL=40 LIMIT=150 step peerlane env NIXL_PLUGIN_DIR="$out/nixl" python3 "$here/nixl_bench.py" --backend PEERLANE \
  "${options[@]}" --json "$results/peerlane.json"
TAIL=40 LIMIT=60 step ucx python3 -u "$here/nixl_bench.py" --backend UCX --few "${options[@]}" --json "$results/ucx.json"
if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -gt 1 ]; then
  TAIL=20 LIMIT=60 step between env NIXL_PLUGIN_DIR="$out/nixl" python3 "$here/nixl_bench.py" --between 1 --json "$results/between.json"
  TAIL=2 LIMIT=100 step prefill_decode env NIXL_PLUGIN_DIR="$out/nixl" python3 "$here/prefill_decode.py" --decode-gpu 1 --json "$results/prefill_decode.json"
  TAIL=2 LIMIT=100 step prefill_decode_ucx python3 "$here/prefill_decode.py" --decode-gpu 1 --backend UCX --rounds 3 --json "$results/prefill_decode_ucx.json"
fi
TAIL=12 LIMIT=90 step killed env NIXL_PLUGIN_DIR="$out/nixl" python3 "$here/nixl_bench.py" --killed 20

echo "=== summary"
printf '%s\n' "${summary[@]}"
python3 - "$results" <<'PYTHON'
import json, os, sys
rows = {}
for name in ("peerlane", "ucx"):
    path = os.path.join(sys.argv[1], name + ".json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for row in json.load(file)["rows"]:
                rows.setdefault((row["way"], row["local"], row["remote"], row["block_bytes"], row["count"]), {})[row["backend"]] = row
print(f"{'':44}{'PEERLANE':>20}{'UCX':>20}")
for key, by in rows.items():
    text = f"{key[0]:6}{key[1]:7}{key[2]:7}{key[3]:>7} B x {key[4]:<14}"
    for name in ("PEERLANE", "UCX"):
        row = by.get(name)
        if row is None or "error" in row:
            text += f"{'failed' if row else '-':>20}"
        elif key[4] == 1:
            text += f"{row['done_us']:>17.2f} us"
        else:
            text += f"{row['gb_per_s']:>15.2f} GB/s"
    print(text)
for name in ("PEERLANE", "UCX"):
    for key, by in rows.items():
        if key[4] >= 10000 and key[3] == 512 and "post_us" in by.get(name, {}):
            print(f"{name}: {key[4]} descriptors: prepared in {by[name]['prepare_ms']:.2f} ms, posted in {by[name]['post_us'] / 1e3:.3f} ms")
PYTHON
exit "$failed"
