#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares two builds in interleaved rounds on one GPU, to find figures that became worse. The older build runs twice (old, same), so that
# same / old shows the variation of the machine. Rows go to the results folder; the medians over the rounds are printed at the end.
# BUDGET: seconds (80).
#   scripts/gpu/builds.sh <out folder of the older build> <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "old=out folder of the older build" out results -- "$@"
begun=$SECONDS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

one() { # build, round, name, command...
  local build=$1 round=$2 name=$3 folder=$old
  shift 3
  [ $((SECONDS - begun)) -lt "${BUDGET:-80}" ] || return 1
  [ "$build" != new ] || folder=$out
  timeout -k 2 15 "$folder/peerlane" "$@" --json "$work/$name.$build.$round.json" >"$work/log" 2>&1 && return
  echo "$name, $build, round $round: exit code $?"
  tail -2 "$work/log"
  failed=1
}

pass() { # build, round
  one "$1" "$2" pplat pplat -t 2000
  one "$1" "$2" copylat copylat -s 4K --budget-ms 8
  one "$1" "$2" copy copy --min 64 --max 64M --methods planner cuMemcpy --direction h2d d2h --memory pinned --time 12 --samples 400 --no-verify
  one "$1" "$2" p2p_device p2p latency -m 8:1M -i 300 -x 50 --via ours --gpus 0,0 --launch fork D D
  one "$1" "$2" p2p_host p2p latency -m 8:64K -i 2000 -x 200 --via ours --launch fork H H
  one "$1" "$2" p2p_bw p2p bw -m 64K:4M -i 12 -x 2 --via ours --gpus 0,0 --launch fork D D
  [ "$2" -le "${STORE_ROUNDS:-3}" ] || return 0
  one "$1" "$2" store_volatile store gpu-direct-demo --data "$work/store" --size 1M --rounds 200 --require-path shm-direct
  rm -rf "$work/store"
  one "$1" "$2" store_durable store gpu-direct-demo --data "$work/store" --size 1M --rounds 60 --durability durable --require-path shm-direct
  rm -rf "$work/store"
}

orders=("old new same" "new same old" "same old new")
for ((round = 1; SECONDS - begun < ${BUDGET:-80}; ++round)); do
  for build in ${orders[$((round % 3))]}; do pass "$build" "$round"; done
done
python3 "$here/builds_table.py" "$work" "$results" || failed=1
exit "$failed"
