#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/debs.sh [--out FOLDER] [--version VERSION] [--quick] [PRESET]: Debian packages of a finished build, into build/debs.
#
# Uses dpkg's own tools (dpkg-gensymbols, dpkg-shlibdeps, dpkg-gencontrol, dpkg-deb) on the files in packaging/deb, which have the
# formats of debian/. It does not use debhelper: that would compile everything again, in a folder that no test has run in, and half of
# debhelper would have to be switched off. What it would add for these packages is in this file. Needs dpkg-dev, no root.
# The same build packed twice gives the same bytes.
# --version: use this version (to test upgrades). --quick: fast compression. Exit code 3: the build is incomplete, because something was
# not found when it was configured. Environment: DEBFULLNAME and DEBEMAIL name the maintainer; set them if you build packages for others.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system_layout.sh

out=build/debs version='' preset=release packing=(-Zxz -z6)
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2 && shift 2 ;;
    --version) version=$2 && shift 2 ;;
    --quick) packing=(-Zgzip -z1) && shift ;;
    -*) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) preset=$1 && shift ;;
  esac
done
build=build/$preset
rules=$PWD/packaging/deb
version=${version:-$(project_version)}
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
lib=usr/lib/$multiarch
SOURCE_DATE_EPOCH=$(project_time)
export SOURCE_DATE_EPOCH

require_whole_build "$build"
mkdir -p build "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d build/debs.XXXXXX)
trap 'rm -rf "$work"' EXIT
stage=$PWD/$work/stage
debian=$PWD/$work/source/debian

# ---- One package -----------------------------------------------------------------------------------------------------
# Moves the files that PACKAGE.install names into the package's tree, so that no other package can contain them. A line that begins
# with ? may match nothing (parts that a build may lack).
take_files() {  # PACKAGE ROOT; fails if nothing was found
  local line optional pattern file found=1
  while read -r line; do
    optional=no
    if [ "${line:0:1}" = '?' ]; then optional=yes line=${line:1}; fi
    pattern=${line//@lib@/$lib}
    for file in "$stage"/$pattern; do
      if [ ! -e "$file" ] && [ ! -L "$file" ]; then
        [ "$optional" = yes ] || { echo "debs: $1: the build has no $pattern" >&2 && exit 1; }
        continue
      fi
      mkdir -p "$2/$(dirname "${file#"$stage"/}")"
      mv "$file" "$2/${file#"$stage"/}"
      found=0
    done
  done <"$rules/$1.install"
  return "$found"
}

add_documents() {  # PACKAGE ROOT
  local folder=$2/usr/share/doc/$1 overrides=$rules/$1.lintian-overrides
  mkdir -p "$folder"
  cp "$rules/copyright" "$folder/"
  gzip -9nc "$debian/changelog" >"$folder/changelog.Debian.gz"
  gzip -9nc CHANGELOG.md >"$folder/changelog.gz"
  # Licences of the software that is linked into programs and libraries; headers and the module's sources contain none.
  if [ -n "$(find "$2/usr/lib" -type f \( -name '*.so*' -o -name peerlane \) -print -quit 2>/dev/null)" ]; then
    gzip -9nc "$build/out/THIRD-PARTY-LICENSES" >"$folder/THIRD-PARTY-LICENSES.gz"
  fi
  [ -e "$overrides" ] || return 0
  install -D -m 644 "$overrides" "$2/usr/share/lintian/overrides/$1"
  # Ubuntu's RocksDB contains zstd. Elsewhere the override would itself be a warning, because it overrides nothing.
  [ "$(. /etc/os-release && echo "$ID")" = ubuntu ] || sed -i '/ libzstd /d' "$2/usr/share/lintian/overrides/$1"
}

# Dependencies of programs are searched first in the libraries that were packed before.
ours=()
for package in libgdrapi2-peerlane libpeerlane0; do ours+=("-S$PWD/$work/trees/$package" "-l$PWD/$work/trees/$package/$lib"); done

# Control files: symbols and triggers of libraries, maintainer scripts, checksums. Variables for the dependencies.
add_control() {  # PACKAGE ROOT
  local script elf=()
  mkdir -p "$2/DEBIAN"
  if [ -e "$rules/$1.symbols" ]; then
    (cd "$debian/.." && dpkg-gensymbols -c4 -q -P"$2" -p"$1" -v"$version" -I"$rules/$1.symbols") || exit 1
    # For packages that are built without symbols files: "libx.so.N package ..." says library, number, package.
    sed -nE "1s/^lib(.*)\.so\.([0-9]+) ([^ ]+) .*/lib\1 \2 \3 (>= $version)/p" "$rules/$1.symbols" >"$2/DEBIAN/shlibs"
  fi
  if [ -n "$(find "$2/$lib" -maxdepth 1 -type f -name '*.so*' 2>/dev/null)" ]; then echo "activate-noawait ldconfig" >"$2/DEBIAN/triggers"; fi
  for script in postinst prerm; do
    [ -e "$rules/$1.$script" ] || continue
    sed "s/@version@/$version/g" "$rules/$1.$script" >"$2/DEBIAN/$script"
    chmod 755 "$2/DEBIAN/$script"
  done
  : >"$debian/substvars"
  mapfile -t elf < <(find "$2/usr/lib" -type f \( -name '*.so*' -o -name peerlane \) ! -name libpeerlane_mpi.so 2>/dev/null)
  if [ ${#elf[@]} -gt 0 ]; then
    # The plug-in for rank groups under mpirun belongs to one MPI; systems without that MPI do not need it.
    if [ -e "$2/$lib/peerlane/libpeerlane_mpi.so" ]; then elf+=(-dSuggests "$2/$lib/peerlane/libpeerlane_mpi.so"); fi
    (cd "$debian/.." && dpkg-shlibdeps --warnings=0 -Tdebian/substvars "${ours[@]}" -dDepends "${elf[@]}")
  fi
  printf '%s\n' "gdrapi:Version=2.6-1+peerlane" "gdsync:Version=2.2-1+peerlane" >>"$debian/substvars"
  (cd "$2" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0r md5sum) >"$2/DEBIAN/md5sums"
  (cd "$debian/.." && dpkg-gencontrol -p"$1" -P"$2" -O"$2/DEBIAN/control" 2>"$debian/../log") || { cat "$debian/../log" >&2 && exit 1; }
}

make_package() {  # PACKAGE
  local root=$work_trees/$1 file
  mkdir -p "$root"
  if ! take_files "$1" "$root"; then
    echo "debs: left out: $1 (this build has none of its files)"
    rm -r "$root"
    return
  fi
  add_documents "$1" "$root"
  add_control "$1" "$root"
  chmod -R u=rwX,go=rX "$root"
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  file=$(dpkg-deb --root-owner-group "${packing[@]}" --build "$root" "$out" | sed -n "s/.* in '\(.*\)'\.$/\1/p")
  echo "debs: ${file#"$PWD"/} ($(stat -c %s "$file") bytes)"
}

# ---- All of them, in the order of control: libraries before what depends on them ----------------------------------------
mkdir -p "$debian" "$work/trees"
work_trees=$PWD/$work/trees
maintainer="${DEBFULLNAME:-Peerlane maintainers} <${DEBEMAIL:-maintainers@peerlane.invalid}>"
sed "s/^Maintainer:.*/Maintainer: $maintainer/" "$rules/control" >"$debian/control"
# Revision 0...: if a distribution packages the same version one day, its packages are newer than these.
printf 'peerlane (%s-0peerlane1) unstable; urgency=medium\n\n  * What changed for users is in changelog.gz.\n\n -- %s  %s\n' \
  "$version" "$maintainer" "$(LC_ALL=C date -Ru -d "@$SOURCE_DATE_EPOCH")" >"$debian/changelog"
umask 022
system_layout "$build" "$stage" "$lib" lib/udev "$version"
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"  # where Debian's zsh looks
rm -f "$out"/*.deb
mapfile -t packages < <(sed -n 's/^Package: //p' "$rules/control")
for package in "${packages[@]}"; do make_package "$package"; done
left=$(find "$stage" ! -type d)
[ -z "$left" ] || { echo "debs: in no package: $left" >&2 && exit 1; }
