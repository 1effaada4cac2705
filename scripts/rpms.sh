#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/rpms.sh [--out FOLDER] [--version VERSION] [PRESET]: RPM packages of a finished build, into build/rpms, by
# packaging/rpm/peerlane.spec. They contain the binaries of this machine, so build on the distribution that will run them (its C library
# decides). Needs rpmbuild. Exit code 3: the build is incomplete.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system_layout.sh

out=build/rpms version='' preset=release
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2 && shift 2 ;;
    --version) version=$2 && shift 2 ;;
    -*) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) preset=$1 && shift ;;
  esac
done
version=${version:-$(project_version)}
require_whole_build "build/$preset"
mkdir -p build "$out"
work=$(mktemp -d build/rpms.XXXXXX)
trap 'rm -rf "$work"' EXIT
stage=$PWD/$work/peerlane-$version

umask 022
system_layout "build/$preset" "$stage" usr/lib64 usr/lib/udev "$version"
# RPM reads the dependencies and names of libraries only from executable files.
find "$stage" -type f -name '*.so*' -exec chmod 755 {} +
cp LICENSE README.md CHANGELOG.md "build/$preset/out/THIRD-PARTY-LICENSES" "$stage/"
mkdir "$work/SOURCES"
tar --owner=0 --group=0 --mtime="@$(project_time)" -C "$work" -czf "$work/SOURCES/peerlane-$version-system.tar.gz" "peerlane-$version"
# _libdir: Debian's rpmbuild does not use lib64.
rpmbuild -bb --quiet --define "_topdir $PWD/$work" --define "_libdir /usr/lib64" --define "peerlane_version $version" \
  --define "peerlane_date $(LC_ALL=C date -u -d "@$(project_time)" '+%a %b %d %Y')" packaging/rpm/peerlane.spec >"$work/log" 2>&1 ||
  { cat "$work/log" && exit 1; }
find "$work/RPMS" -name '*.rpm' -exec mv -t "$out" {} +
for file in "$out"/peerlane*-"$version"-*.rpm; do echo "rpms: $file ($(stat -c %s "$file") bytes)"; done
