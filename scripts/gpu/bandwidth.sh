#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures links on real GPUs: the whole default run with verdicts; the same under the original's name; repeatability; a run that must be
# judged slow; --transfer; sizes; the multi-node testcases as processes of this machine. Prints a short table at the end. It
# builds nothing: it uses the folder that `make build` made. Results (JSON and text) go to the results folder.
#   scripts/gpu/bandwidth.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
program=$out/peerlane
size=512M small=64K
[ "$PEERLANE_GPU" = sim ] && size=1M small=4K

TAIL=30 step info "$program" info
TAIL=200 LIMIT=150 step default "$program" bandwidth -b $size --json "$results/default.json"
TAIL=30 LIMIT=60 step repeat "$program" bandwidth -b $size --samples 10 -t host_to_device_memcpy_ce device_to_host_memcpy_ce \
  device_local_copy --json "$results/repeat.json"
# Exit status 3 is expected: the buffer is too small for the link's rate.
EXPECT_RC=3 TAIL=12 step slow "$program" bandwidth -b $small -t host_to_device_memcpy_ce --json "$results/slow.json"
TAIL=14 step transfer "$program" bandwidth --transfer "H -> [ce] -> G0, G0 -> [ce] -> H" --transfer "G0 -> [sm:16] -> G0" \
  --json "$results/transfer.json"
TAIL=40 LIMIT=60 step sweep "$program" bandwidth --size-sweep 4:64M -t host_to_device_memcpy_ce device_to_host_memcpy_ce \
  host_to_device_bar device_to_host_engine --samples 3 --json "$results/sweep.json"
ln -sf peerlane "$out/nvbandwidth"
TAIL=40 LIMIT=60 step nvbandwidth_text "$out/nvbandwidth" -b 128 -p device
TAIL=12 LIMIT=60 step nvbandwidth_json "$out/nvbandwidth" -b 128 -j -p host

gpus=$("$program" info 2>/dev/null | grep -c '^GPU [0-9]*:')
[ "$gpus" -gt 1 ] && TAIL=80 step multinode multinode_ranks "$gpus" -b $size

echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
