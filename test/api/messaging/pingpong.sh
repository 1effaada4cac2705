#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pingpong.sh PROGRAM callbacks|file|folder|port: runs it with a folder, or a port, that is free.
set -euo pipefail
program=$1 way=$2
case "$way" in
  callbacks) exec "$program" callbacks ;;
  file)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$program" "file:$folder" ;;
  folder)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "$program" "$folder" ;;
  port)
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$program" "127.0.0.1:$port" ;;
esac
