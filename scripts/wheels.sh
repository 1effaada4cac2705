#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/wheels.sh [PRESET]: wheels of a finished build, into build/: one for Python 3.12 and later (abi3), one for 3.10 and one for
# 3.11, for those of these Pythons that this machine has with headers. Compiles only the small Python module. auditwheel determines the
# oldest glibc on which they run, and puts it into the file name. Needs a package registry (for the build tools).
# Environment: PYTHONS (interpreters to build for; default: python3.10 to python3.14 on PATH).
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
out=$PWD/build/$preset/out
stage=$(mktemp -d build/wheels.XXXXXX)
trap 'rm -rf "$stage"' EXIT
quiet=(--quiet --disable-pip-version-check --no-input)

# Prints the kind of wheel that an interpreter makes: 3.10, 3.11 or abi3; nothing if it cannot make one.
wheel_kind() {
  "$1" - 2>/dev/null <<'PY'
import os, sys, sysconfig, venv
if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) and sys.version_info >= (3, 10):
    print("abi3" if sys.version_info >= (3, 12) else "%d.%d" % sys.version_info[:2])
PY
}

made=" "
for python in ${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}; do
  kind=$(wheel_kind "$python" || true)
  if [ -z "$kind" ] || [[ $made == *" $kind "* ]]; then continue; fi
  # A clean interpreter: pip fetches the build tools into its own environment.
  "$python" -m venv "$stage/$kind"
  "$stage/$kind/bin/python" -m pip wheel "${quiet[@]}" --no-deps -w "$stage/wheels" --config-settings=build-dir="$stage/build-$kind" \
    --config-settings=cmake.define.PEERLANE_PREBUILT="$out" . >"$stage/log" 2>&1 || { cat "$stage/log"; exit 1; }
  made+="$kind "
done
if [ "$made" = " " ]; then
  echo "dist: no wheel: needs Python 3.10 or newer with venv and its headers (apt-get install python3-venv python3-dev)"
  exit 0
fi

tools=$(echo "$stage"/*/bin/python | cut -d' ' -f1)
"$tools" -m pip install "${quiet[@]}" auditwheel wheel
for wheel in "$stage"/wheels/*.whl; do
  "$tools" -m auditwheel show "$wheel" >"$stage/log" 2>/dev/null
  tag=$(tr '\n' ' ' <"$stage/log" | sed -n 's/.*platform tag: "\(manylinux[^"]*\)".*/\1/p')
  [ -n "$tag" ] || { echo "dist: not manylinux: $(basename "$wheel")"; cat "$stage/log"; exit 1; }
  name=$("$tools" -m wheel tags --remove --platform-tag "$tag" "$wheel" | tail -1)
  mv "$stage/wheels/$name" build/
  echo "dist: build/$name ($(stat -c %s "build/$name") bytes)"
done
