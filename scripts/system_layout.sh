#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Arranges the files of a finished build as a distribution's packages do. Sourced by debs.sh and rpms.sh.
# system_layout BUILD STAGE LIB UDEV VERSION: below the empty folder STAGE. LIB: the folder of libraries (usr/lib64,
# usr/lib/x86_64-linux-gnu). UDEV: that of udev (lib/udev, usr/lib/udev). VERSION replaces the build's own version.
# Exit code 3: the build is incomplete, because something was not found when it was configured.

project_version() { sed -n 's/^project(peerlane VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt; }

# Time stamps are those of the commit, so that packages depend only on the content.
project_time() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)}"; }

require_whole_build() {  # BUILD
  local part
  for part in peerlane sim/libcuda.so.1 libgdrapi.so libpeerlane.so libpeerlane_store.so libgdsync.so; do
    [ -e "$1/out/$part" ] || { echo "packages: none: the build lacks $part ($1/out)" >&2 && exit 3; }
  done
}

# Moves <prefix>/lib to LIB, and changes the files that name it.
move_libraries() {  # BUILD STAGE LIB
  local stage=$2 lib=$3 built file name up
  built=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$1/CMakeCache.txt")
  if [ "usr/$built" != "$lib" ]; then
    mv "$stage/usr/$built" "$stage/libraries"
    mkdir -p "$(dirname "$stage/$lib")"
    mv "$stage/libraries" "$stage/$lib"
  fi
  for file in "$stage/$lib"/pkgconfig/*.pc; do
    sed -i "s|^prefix=.*|prefix=/usr|; s|^libdir=.*|libdir=\${prefix}/${lib#usr/}|" "$file"
  done
  up=$(realpath -m --relative-to="/$lib/cmake/package" /usr)
  for file in "$stage/$lib"/cmake/*/*-config.cmake; do
    sed -i "s|\${CMAKE_CURRENT_LIST_DIR}[^\"]*\"|\${CMAKE_CURRENT_LIST_DIR}/$up\"|; s|_pl_prefix}/$built/|_pl_prefix}/${lib#usr/}/|" "$file"
  done
  for name in "$stage"/usr/bin/*; do ln -sf "../${lib#usr/}/peerlane/peerlane" "$name"; done
}

tidy_binaries() {  # STAGE LIB
  local stage=$1 lib=$2 file
  # The loader finds libraries of the system. The program keeps its own path: GDRCopy's `make install` puts a libgdrapi.so.2 into
  # /usr/local/lib, which the loader searches first.
  for file in "$stage/$lib"/*.so.* "$stage/$lib"/*.so "$stage/$lib"/peerlane/sim/*.so.*; do
    [ -L "$file" ] || echo "file(RPATH_REMOVE FILE \"$file\")"
  done >"$stage/rpath.cmake"
  cmake -P "$stage/rpath.cmake" >"$stage/log" || { cat "$stage/log" && exit 1; }
  rm "$stage/rpath.cmake" "$stage/log"
  rm -f "$stage/$lib"/peerlane/sim/*.so
  # Only those parts of the Python package that the program's commands run: the rest needs the compiled module, which is for one
  # version of Python (wheels contain it).
  if [ -d "$stage/$lib/peerlane/python" ]; then find "$stage/$lib/peerlane/python/peerlane" -mindepth 1 -maxdepth 1 ! -name report ! -name top.py ! -name _output.py -exec rm -r {} +; fi
  find "$stage" -type f -name '*.so*' -exec chmod 644 {} +
}

place_service() {  # STAGE
  local given=$1/usr/share/peerlane/systemd
  mkdir -p "$1/usr/lib/systemd/system" "$1/usr/lib/sysusers.d"
  mv "$given/peerlane-store.service" "$1/usr/lib/systemd/system/"
  mv "$given/peerlane-store.sysusers" "$1/usr/lib/sysusers.d/peerlane-store.conf"
  rmdir "$given"
}

place_driver_and_pages() {  # STAGE UDEV VERSION
  local stage=$1 udev=$2 version=$3 own source name
  own=$(project_version)
  source=$stage/usr/src/peerlane-gdrdrv-$own
  mkdir -p "$stage/$udev/rules.d" "$stage/usr/lib/modprobe.d"
  mv "$source/70-gdrdrv.rules" "$stage/$udev/rules.d/"
  mv "$source/peerlane-gdrdrv.conf" "$stage/usr/lib/modprobe.d/"
  if [ "$version" != "$own" ]; then
    mv "$source" "$stage/usr/src/peerlane-gdrdrv-$version"
    sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\"$version\"/" "$stage/usr/src/peerlane-gdrdrv-$version/dkms.conf"
  fi
  gzip -9n "$stage/usr/share/man/man1/peerlane.1"
  for name in "$stage"/usr/bin/*; do
    name=$(basename "$name")
    [ "$name" = peerlane ] || ln -s peerlane.1.gz "$stage/usr/share/man/man1/$name.1.gz"
  done
  rm -r "$stage/usr/share/doc"
}

system_layout() {  # BUILD STAGE LIB UDEV VERSION
  mkdir -p "$2"
  cmake --install "$1" --prefix "$2/usr" --strip >"$2/log" || { cat "$2/log" && exit 1; }
  move_libraries "$1" "$2" "$3"
  tidy_binaries "$2" "$3"
  place_service "$2"
  place_driver_and_pages "$2" "$4" "$5"
}
