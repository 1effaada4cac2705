#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the basic tools on a real GPU: demo and sanity as root and as an unprivileged user, latency and bandwidth beside the baselines in
# one interleaved run, the other tools, and a check that nothing is left behind. Prints a short table at the end. It builds nothing: it
# uses the folder that `make build` made. Results (JSON) go to the results folder.
#   scripts/gpu/foundation.sh <out folder of the build> <results folder> [<folder of the test/abi programs>]
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results "?abi=folder of the test/abi programs" -- "$@"

bar1_used() { nvidia-smi -q | sed -n '/BAR1 Memory Usage/,/Free/s/.*Used *: //p' | tr '\n' ' '; }

echo "BAR1 used before: $(bar1_used)"
cp -r "$out" /tmp/peerlane-out && chmod -R a+rX /tmp/peerlane-out
mkdir -p /tmp/peerlane-nobody && chown 65534 /tmp/peerlane-nobody
TAIL=40 step info "$out/peerlane" info
TAIL=30 step doctor "$out/peerlane" doctor
TAIL=40 step demo_root "$out/peerlane" demo --json "$results/demo_root.json"
TAIL=12 step sanity_root "$out/peerlane" sanity -v --json "$results/sanity_root.json"
TAIL=12 step sanity_nobody "${nobody[@]}" /tmp/peerlane-out/peerlane sanity --json /tmp/peerlane-nobody/sanity_nobody.json
TAIL=12 step demo_nobody "${nobody[@]}" /tmp/peerlane-out/peerlane demo --json /tmp/peerlane-nobody/demo_nobody.json
TAIL=60 step copylat "$out/peerlane" copylat --json "$results/copylat.json"
TAIL=30 step copylat_alignments "$out/peerlane" copylat --alignments -r 400 --json "$results/copylat_alignments.json"
TAIL=5 step copylat_batch "$out/peerlane" copylat --batch --json "$results/copylat_batch.json"
TAIL=12 step copybw "$out/peerlane" copybw --json "$results/copybw.json"
TAIL=12 step apiperf "$out/peerlane" apiperf --json "$results/apiperf.json"
TAIL=3 step pplat "$out/peerlane" pplat --json "$results/pplat.json"
TAIL=3 step pplat_gpu_first "$out/peerlane" pplat -m 1 --json "$results/pplat_gpu_first.json"
TAIL=3 step pplat_data "$out/peerlane" pplat -s 4096 --json "$results/pplat_data.json"
TAIL=8 step apiperf_cached "$out/peerlane" apiperf --cached --json "$results/apiperf_cached.json"
# Programs that use only gdrapi.h, one of them with the info struct of GDRCopy 2.3 and older.
for program in abi_whole_life abi_v1_info abi_poked_structs; do
  [ -n "$abi" ] && TAIL=2 step "$program" env LD_LIBRARY_PATH="$out" "$abi/$program"
done
[ "$(nvidia-smi -L | wc -l)" -gt 1 ] && for order in 1,0 1; do
  TAIL=4 step "devices_$order" env CUDA_VISIBLE_DEVICES="$order" "$out/peerlane" sanity -t data_validation_cumemalloc -t unaligned_map -t vmm_adjacent_pieces
done
cp /tmp/peerlane-nobody/*.json "$results/" 2>/dev/null
echo "BAR1 used after: $(bar1_used)"
echo "=== summary"
printf '%s\n' "${summary[@]}"
tidy_results "$results"
exit "$failed"
