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
if [ $# -lt 3 ]; then
  echo "usage: $0 <mapping_faults> <out folder of the build> <results folder> [backend]" >&2
  exit 2
fi
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") || exit 2
out=$(cd "$2" && pwd) || exit 2
mkdir -p "$3"
results=$(cd "$3" && pwd) || exit 2
export PEERLANE_GPU=real
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
export LIMIT=110 TAIL=60

step mapping_faults "$program" --libraries "$out" --backend "${4:-rm}"
printf '%s\n' "${summary[@]}"
exit "$failed"
