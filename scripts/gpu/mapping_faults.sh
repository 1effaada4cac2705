#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what only a real GPU can show of the mapping layer: which backend can be used, the check of a first mapping beside a kernel that
# does not end and beside a stream capture, addresses of mappings and what remains of them, two of Peerlane's libraries in one process,
# memory of another process, fork, and a context that is destroyed. Takes less than a minute, and prints a short table. It builds nothing:
#
#   ninja -C build/release mapping_faults gdrapi peerlane
#   scripts/gpu/mapping_faults.sh build/release/test/gpu/mapping_faults build/release/out <results folder> [backend: rm]
#
# Exit status 0: nothing failed. A line "note" records how the driver behaves where nothing documents it; keep those of case 28.
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "faults=mapping_faults" out results "?backend=backend" -- "$@"
export LIMIT=110 TAIL=60

step mapping_faults "$faults" --libraries "$out" --backend "${backend:-rm}"
printf '%s\n' "${summary[@]}"
exit "$failed"
