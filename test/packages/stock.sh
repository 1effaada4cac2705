#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stock.sh FOLDER: stand-ins for the packages of GDRCopy 2.6, with their names, dependencies and paths, and files that say "stock".
set -euo pipefail
folder=$1
architecture=$(dpkg --print-architecture)
lib=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
trees=$(mktemp -d)
trap 'rm -rf "$trees"' EXIT
mkdir -p "$folder"

package() {  # NAME VERSION DEPENDS FILE...
  local root=$trees/$1 name=$1 version=$2 depends=$3 file
  shift 3
  mkdir -p "$root/DEBIAN"
  for file; do
    mkdir -p "$root/$(dirname "$file")"
    echo stock >"$root/$file"
  done
  printf '%s\n' "Package: $name" "Version: $version" "Architecture: $architecture" "Multi-Arch: same" "Maintainer: Nobody <nobody@example.org>" \
    ${depends:+"Depends: $depends"} "Description: stand-in for the stock package" >"$root/DEBIAN/control"
  case "$name" in libgdrapi)
    ln -s libgdrapi.so.2.6 "$root/$lib/libgdrapi.so.2"
    ln -s libgdrapi.so.2 "$root/$lib/libgdrapi.so"
    ;;
  esac
  dpkg-deb --root-owner-group --build "$root" "$folder" >/dev/null
}

package libgdrapi 2.6-1 'libc6' "$lib/libgdrapi.so.2.6" usr/include/gdrapi.h usr/include/gdrconfig.h
package gdrcopy-tests 2.6-1 'libgdrapi (>= 2.6-1)' usr/bin/gdrcopy_sanity usr/bin/sanity
package gdrdrv-dkms 2.6-1 '' usr/src/gdrdrv-2.6/gdrdrv.c
package gdrcopy 2.6-1 'gdrdrv-dkms (= 2.6-1), libgdrapi (= 2.6-1), gdrcopy-tests (= 2.6-1)' usr/share/doc/gdrcopy/README
