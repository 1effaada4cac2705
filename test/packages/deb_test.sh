#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deb_test.sh BUILD_DIR SOURCE_DIR CC: makes the Debian packages of the build and looks at them without installing: names, contents,
# dependencies, lintian; then unpacks all of them and runs and compiles from there. Exit code 77: this is no Debian.
set -euo pipefail
build=$1 source=$2 cc=$3
for tool in dpkg-gencontrol dpkg-shlibdeps; do
  command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool (Debian: dpkg-dev)" && exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
has() { grep "$@" >/dev/null; }  # not grep -q: it would leave early, and break the pipe of who still writes
fail() { echo "FAILED: $*" && exit 1; }
version=$(sed -n 's/^project(peerlane VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
lib=usr/lib/$multiarch
field() { dpkg-deb -f "$work/debs/$1"_*.deb "$2"; }

"$source/scripts/debs.sh" --quick --out "$work/debs" "$(basename "$build")"

# Each package that packaging/deb/control names is there, with the version of CMakeLists.txt.
while read -r package; do
  if [ "$package" = peerlane-mpi ] && [ ! -e "$build/out/libpeerlane-mpi-ompi.so" ] && [ ! -e "$build/out/libpeerlane-mpi-mpich.so" ]; then continue; fi
  [[ $(field "$package" Version) == "$version"-* ]] || fail "$package has the version $(field "$package" Version), not $version"
done < <(sed -n 's/^Package: //p' "$source/packaging/deb/control")

# No file is in two of them, and none of this machine's paths is in any.
for deb in "$work"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$'
  dpkg-deb -x "$deb" "$work/root"
done | sort | uniq -d >"$work/twice"
[ ! -s "$work/twice" ] || fail "in two packages: $(cat "$work/twice")"
! grep -rlF "$source/" "$work/root" || fail "these files name the build's folder"

# The module is nobody's condition: no package but its own speaks of it other than as a suggestion.
for deb in "$work"/debs/*.deb; do
  ! dpkg-deb -f "$deb" Package Pre-Depends Depends Recommends | grep -v '^Package:' | grep gdrdrv || fail "$deb needs the module"
done
[[ $(field libgdrapi2-peerlane Provides) == *"libgdrapi (= 2.6-1"* ]] || fail "libgdrapi2-peerlane does not stand for libgdrapi"
[[ $(field peerlane Depends) == *"libgdrapi2-peerlane (>= "* ]] || fail "peerlane depends on $(field peerlane Depends): no libgdrapi2-peerlane"
# What is needed beside our own is the C library, so that dpkg alone installs them anywhere.
for deb in "$work"/debs/*.deb; do
  others=$(dpkg-deb -f "$deb" Depends | tr ',|' '\n\n' | sed 's/^ *//; s/[ (].*//' | grep -vE '^(libc6|dkms|.*peerlane.*|)$' | grep -v '^$' || true)
  [ -z "$others" ] || fail "$(basename "$deb") depends on $others"
done

# The licences of what is linked are where the programs and libraries are, whole.
for package in peerlane libgdrapi2-peerlane libpeerlane0 libpeerlane-store0; do
  zcat "$work/root/usr/share/doc/$package/THIRD-PARTY-LICENSES.gz" >"$work/licences" || fail "$package has no licences of what it holds"
  ! has 'TEXT NOT FOUND' <"$work/licences" || fail "$package: a licence's text is missing"
  for component in RocksDB OpenSSL zstd lz4 hwloc CLI11; do has "^$component (" <"$work/licences" || fail "$package: no licence of $component"; done
done

# The image's recipe installs packages that there are.
while read -r package; do
  compgen -G "$work/debs/${package}_*.deb" >/dev/null || fail "packaging/container/Containerfile installs $package, which there is not"
done < <(grep -o 'tmp/debs/[a-z0-9-]*' "$source/packaging/container/Containerfile" | sed 's|tmp/debs/||' | grep .)

# A reason stands above each group of overrides.
for file in "$source"/packaging/deb/*.lintian-overrides; do
  head -n 1 "$file" | has '^# ' || fail "$file: an override without a reason"
done
if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning "$work"/debs/*.deb || fail "lintian"
else
  echo "NOT CHECKED: lintian (not installed: apt-get install lintian)"
fi
if command -v man >/dev/null; then
  complaints=$(LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -E UTF-8 -l "$work/root/usr/share/man/man1/peerlane.1.gz" 2>&1 >/dev/null)
  [ -z "$complaints" ] || fail "man: $complaints"
fi

# As they would lie in the system: the program finds its libraries by itself, the simulated GPU too.
unset LD_LIBRARY_PATH
"$work/root/usr/bin/peerlane" --version | has "^peerlane $version" || fail "peerlane --version"
zcat "$work/root/usr/share/man/man1/peerlane.1.gz" | has 'explain' || fail "the manual does not name the commands"
PATH=$work/root/usr/bin:$PATH bash -c '. "$1" && COMP_WORDS=(peerlane exp) COMP_CWORD=1 && _peerlane && [ "${COMPREPLY[*]}" = explain-copy ]' \
  - "$work/root/usr/share/bash-completion/completions/peerlane" || fail "bash completion"
[ -s "$work/root/usr/share/zsh/vendor-completions/_peerlane" ] || fail "zsh completion"
"$work/root/usr/bin/peerlane" report --help >"$work/log" 2>&1 || { cat "$work/log"; fail "peerlane report --help"; }
PEERLANE_GPU=sim "$work/root/usr/bin/gdrcopy_sanity" -t basic_cumemalloc >"$work/log" 2>&1 || { cat "$work/log"; fail "gdrcopy_sanity"; }
sim=$work/root/$lib/peerlane/sim
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_LIBDIR=$work/root/$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/root PKG_CONFIG_SYSTEM_LIBRARY_PATH=/none PKG_CONFIG_SYSTEM_INCLUDE_PATH=/none
  # shellcheck disable=SC2046 # flags are words
  "$cc" -Wall -Wextra -Werror -o "$work/map_and_write" "$source/test/repo/consumer/map_and_write.c" $(pkg-config --cflags --libs peerlane) "$sim/libcuda.so.1"
  LD_LIBRARY_PATH=$work/root/$lib:$sim "$work/map_and_write" || fail "map_and_write"
fi
if command -v cmake >/dev/null; then
  for name in gdrapi peerlane peerlane_store gdsync; do
    echo "find_package($name REQUIRED CONFIG NO_DEFAULT_PATH PATHS $work/root/$lib/cmake/$name)"
    echo "get_target_property(file $name::$name IMPORTED_LOCATION)"
    echo "if(NOT EXISTS \"\${file}\")
      message(FATAL_ERROR \"$name: no \${file}\")
    endif()"
  done >"$work/find.cmake"
  mkdir "$work/project"
  { echo "cmake_minimum_required(VERSION 3.20)" && echo "project(find LANGUAGES NONE)" && cat "$work/find.cmake"; } >"$work/project/CMakeLists.txt"
  cmake -S "$work/project" -B "$work/project/build" >"$work/log" 2>&1 || { cat "$work/log"; fail "find_package"; }
fi

# The module's sources are whole: make has a rule's every file, without the repository around.
driver=$work/root/usr/src/peerlane-gdrdrv-$version
diff <(cd "$source/driver/gdrdrv" && find . -type f \( -name '*.[ch]' -o -name Makefile -o -name Kbuild \) ! -name '*.mod.c' -printf '%P\n' | sort) \
  <(cd "$driver" && find . -type f -printf '%P\n' | grep -vE '^(dkms.conf|gdrdrv_ioctl.h)$' | sort) || fail "the module's sources differ from the repository's"
grep -q "^PACKAGE_VERSION=\"$version\"" "$driver/dkms.conf" || fail "dkms.conf has another version"
echo "packages: $(find "$work/debs" -name '*.deb' | wc -l) made, checked and used"
