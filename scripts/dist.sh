#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/dist.sh [PRESET]: packs a finished build as build/peerlane-<version>-linux-<arch>.tar.gz (programs, libraries, headers,
# pkg-config and CMake files, licence), then makes the Debian packages (debs.sh) and the wheels (wheels.sh). The archive can be unpacked
# anywhere: its files contain no absolute paths. The same build packed twice gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
build=build/$preset
version=$(sed -n 's/^project(peerlane VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=peerlane-$version-linux-$(uname -m)
stage=$(mktemp -d build/dist.XXXXXX)
trap 'rm -rf "$stage"' EXIT

if grep -q 'TEXT NOT FOUND' "$build/out/THIRD-PARTY-LICENSES"; then
  echo "dist: the licence of something that is linked was not found when this build was configured ($build/out/THIRD-PARTY-LICENSES)" >&2
  exit 1
fi
cmake --install "$build" --prefix "$PWD/$stage/$name" --strip >"$stage/install.log" || { cat "$stage/install.log"; exit 1; }
cp LICENSE README.md "$build/out/THIRD-PARTY-LICENSES" "$stage/$name/"

# Time stamps are those of the commit, so that the archive depends only on the content.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)}
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu --mode='u=rwX,go=rX' \
  -C "$stage" -cf - "$name" | gzip -9n >"build/$name.tar.gz"
echo "dist: build/$name.tar.gz ($(stat -c %s "build/$name.tar.gz") bytes)"

if command -v dpkg-gencontrol >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
  scripts/debs.sh "$preset" || [ $? -eq 3 ]  # 3: it has printed what this build lacks
else
  echo "dist: no Debian packages (needs dpkg's tools: apt-get install dpkg-dev)"
fi
scripts/wheels.sh "$preset"
