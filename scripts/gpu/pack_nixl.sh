#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs NIXL for a machine without a network: the files of a wheel that its Python interface and the UCX backend need, stripped of symbols
# (about 30 MB of 180). Fetches the wheel for the given Python version from PyPI.
#   scripts/gpu/pack_nixl.sh <Python version, for example 3.12> <folder to make>
set -euo pipefail
if [ $# -ne 2 ]; then
  echo "usage: $0 <Python version> <folder to make>" >&2
  exit 2
fi
version=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --dest "$work" nixl-cu13==1.5.1
python3 - "$work" "$folder" <<'PYTHON'
import glob, os, re, shutil, subprocess, sys, zipfile
work, folder = sys.argv[1:]
whole = os.path.join(work, "whole")
zipfile.ZipFile(glob.glob(f"{work}/*.whl")[0]).extractall(whole)
libraries = {}
for path in glob.glob(f"{whole}/**/*.so*", recursive=True) + glob.glob(f"{whole}/.*/**/*.so*", recursive=True):
    libraries.setdefault(os.path.basename(path), []).append(path)
begin = glob.glob(f"{whole}/nixl_cu13/*.so") + glob.glob(f"{whole}/.nixl*/plugins/libplugin_UCX.so")
begin += [path for path in glob.glob(f"{whole}/nixl_cu13.libs/ucx/lib*.so*") if re.search(r"lib(ucm|uct)_(cuda|cma)\.", path)]
kept, open_ones = set(), begin
while open_ones:
    path = open_ones.pop()
    if path in kept:
        continue
    kept.add(path)
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
        near = [one for one in libraries.get(name, []) if os.path.dirname(one) == os.path.dirname(path)]
        open_ones += near or libraries.get(name, [])[:1]
kept |= {path for path in glob.glob(f"{whole}/nixl_cu13/*") if not path.endswith(".so")}
kept |= {path for path in glob.glob(f"{whole}/nixl_cu13-*.dist-info/*") if os.path.isfile(path)}
for path in sorted(kept):
    to = os.path.join(folder, os.path.relpath(path, whole))
    os.makedirs(os.path.dirname(to), exist_ok=True)
    shutil.copy(path, to)
    if ".so" in path:
        subprocess.run(["strip", "--strip-unneeded", to], check=False, stderr=subprocess.DEVNULL)
PYTHON
du -sh "$folder" | cut -f1
