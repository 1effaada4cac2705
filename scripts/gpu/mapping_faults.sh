#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What only a real GPU can show of the mapping layer: which backend may be taken, the proof of a first mapping beside a kernel
# that does not end and beside a stream capture, addresses of mappings and what is left of them, two of our libraries at once,
# memory of another process, fork and a context that goes. Less than a minute; a short table. It builds nothing:
#
#   ninja -C build/release mapping_faults gdrapi peerlane
#   scripts/gpu/mapping_faults.sh build/release/test/gpu/mapping_faults build/release/out <results folder> [backend: rm]
#
# Exit status 0: nothing failed. A line "note" is what the driver answered where that was not known before: keep those of 28.
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "faults=mapping_faults" out results "?backend=backend" -- "$@"
export LIMIT=110 TAIL=60

step mapping_faults "$faults" --libraries "$out" --backend "${backend:-rm}"
printf '%s\n' "${summary[@]}"
exit "$failed"
