#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with PyPI's UCX that was built with CUDA, without the files that only builds need: about 6 MB, for a GPU machine without a
# package registry. p2p.sh and shim.sh take its path. Needs pip with a registry.
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
# UCX needs these to recognise the application's GPU memory; without them it takes GPU memory for host memory and crashes.
cp -L "$wheel"/all/libucx_cu13.libs/*.so* "$1"
find "$1" -name '*.so*' -type f -exec strip --strip-unneeded {} +
