#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with PyPI's UCX that knows CUDA, without what only builds against it need: some 6 MB, for a machine that has a
# GPU and no package registry. Its path is what p2p.sh and shim.sh take. Needs pip with a registry.
#   scripts/gpu/pack_ucx.sh DEST
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 DEST" >&2; exit 2; }
version=1.22.0

wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
python3 -m pip download -q --no-deps -d "$wheel" "libucx-cu13==$version"
python3 -m zipfile -e "$wheel"/libucx_cu13-*.whl "$wheel/all"
rm -rf "$1"
mkdir -p "$1/ucx"
for library in "$wheel"/all/libucx/lib/*.so.0; do cp -L "$library" "$1"; done
for module in "$wheel"/all/libucx/lib/ucx/*.so.0; do
  case $module in *perftest*) ;; *) cp -L "$module" "$1/ucx" ;; esac
done
# What follows the application's GPU memory needs these; without them UCX takes GPU memory for the host's and crashes.
cp -L "$wheel"/all/libucx_cu13.libs/*.so* "$1"
find "$1" -name '*.so*' -type f -exec strip --strip-unneeded {} +
