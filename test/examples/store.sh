#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# store.sh PEERLANE EXAMPLE: the example against a store of its own.
set -euo pipefail
peerlane=$1 example=$2
folder=$(mktemp -d)
"$peerlane" store serve --data "$folder/data" > "$folder/log" 2>&1 &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait "$server" 2> /dev/null || true; rm -rf "$folder"' EXIT
for _ in $(seq 600); do
  if [ -S "$folder/data/store.sock" ]; then break; fi
  kill -0 "$server" || { cat "$folder/log"; exit 1; }
  sleep 0.1
done
"$example" "$folder/data/store.sock"
