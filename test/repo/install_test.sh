#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh BUILD_DIR SOURCE_DIR CMAKE CC CXX MESSAGES: installs into an empty prefix, moves it (nothing inside may depend on
# where it was installed), and builds and runs a consumer there by pkg-config and by find_package. MESSAGES: 0 if the build has none.
set -euo pipefail
build=$1 source=$2 cmake=$3 cc=$4 cxx=$5 messages=$6
work=$(mktemp -d)
# The list of a real installation is the reader's, and stays.
manifest=$build/install_manifest.txt
[ ! -e "$manifest" ] || cp "$manifest" "$work/manifest"
clean_up() {
  rm -f "$manifest"
  [ ! -e "$work/manifest" ] || cp "$work/manifest" "$manifest"
  rm -rf "$work"
}
trap clean_up EXIT
fail() { echo "FAILED: $*"; exit 1; }

(umask 022 && "$cmake" --install "$build" --prefix "$work/first" >"$work/log" 2>&1) || { cat "$work/log"; fail "cmake --install"; }
# Root's umask may be 077: that is said. README: how what was installed is removed.
! grep -q umask "$work/log" || fail "a warning about umask 022"
(umask 077 && "$cmake" --install "$build" --prefix "$work/removed" >"$work/log" 2>&1) || { cat "$work/log"; fail "cmake --install, again"; }
grep -q 'Your umask is 0077.*closed to other users' <(tr '\n' ' ' <"$work/log") || { cat "$work/log"; fail "no warning about umask 077"; }
[ -z "$(find "$work/removed" -type f ! -perm -004)" ] || fail "not for everybody: $(find "$work/removed" -type f ! -perm -004)"
xargs -d '\n' rm -f <"$manifest"
[ -z "$(find "$work/removed" ! -type d)" ] || fail "install_manifest.txt does not name $(find "$work/removed" ! -type d)"
prefix=$work/moved
mv "$work/first" "$prefix"
lib=$(dirname "$(find "$prefix" -name 'libgdrapi.so.2')")
[ -d "$lib" ] || fail "no libgdrapi.so.2 was installed"

# Clients dlopen libgdrapi.so or libgdrapi.so.2: both are in the run-time set, and lead to the versioned file.
[ "$(readlink -f "$lib/libgdrapi.so")" = "$lib/libgdrapi.so.2.6" ] || fail "libgdrapi.so does not lead to libgdrapi.so.2.6"
[ "$(readlink -f "$lib/libgdrapi.so.2")" = "$lib/libgdrapi.so.2.6" ] || fail "libgdrapi.so.2 does not lead to libgdrapi.so.2.6"
readelf -d "$lib/libgdrapi.so" | grep -q 'SONAME.*\[libgdrapi\.so\.2\]' || fail "the SONAME is not libgdrapi.so.2"
for file in "$lib"/*.so "$lib"/peerlane/peerlane; do
  [ -e "$file" ] || continue
  paths=$(readelf -d "$file" | sed -n 's/.*R[UN]*PATH.*\[\(.*\)\]/\1/p' | tr ':' '\n' | grep -v '^\$ORIGIN' || true)
  [ -z "$paths" ] || fail "$file looks for libraries in $paths, which exists on the build machine only"
done
diff <(cd "$source/include" && find . -type f | sort) <(cd "$prefix/include" && find . -type f | sort) || fail "headers differ"

if [ -e "$build/out/peerlane" ]; then
  "$prefix/bin/peerlane" --help >/dev/null || fail "the installed peerlane --help"
  grep -q 'peerlane explain' "$prefix/share/man/man1/peerlane.1" || fail "the manual does not name the commands"
  words=$(PATH=$prefix/bin:$PATH bash -c '. "$1"; COMP_WORDS=(peerlane exp); COMP_CWORD=1; _peerlane; echo "${COMPREPLY[*]}"' - \
    "$prefix/share/bash-completion/completions/peerlane")
  [ "$words" = explain-copy ] || fail "bash completion of exp says '$words'"
  [ -s "$prefix/share/zsh/site-functions/_peerlane" ] || fail "no zsh completion"
fi

export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$lib/pkgconfig
  # shellcheck disable=SC2046 # flags are words
  "$cc" -o "$work/use_gdrapi" "$source/test/repo/consumer/use_gdrapi.c" $(pkg-config --cflags --libs gdrapi)
  # shellcheck disable=SC2046
  "$cxx" -std=c++20 -o "$work/use_peerlane" "$source/test/repo/consumer/use_peerlane.cpp" $(pkg-config --cflags --libs peerlane)
  "$work/use_gdrapi" || fail "use_gdrapi by pkg-config: $?"
  "$work/use_peerlane" || fail "use_peerlane by pkg-config: $?"
  [ "$(pkg-config --modversion gdrapi)" = 2.6 ] || fail "gdrapi.pc states another version than 2.6"
fi

# As UCX's configure looks for --with-gdrcopy=PREFIX: the header, then PREFIX/lib64 if that is there and else PREFIX/lib, the
# library by -lgdrapi, and two functions declared or not, which decides what its module calls.
ucx_lib=$prefix/lib
[ ! -d "$prefix/lib64" ] || ucx_lib=$prefix/lib64
for call in 'gdr_pin_buffer(0, 0, 0, 0, 0, 0)' '(void)gdr_pin_buffer_v2' '(void)gdr_copy_to_mapping'; do
  printf '#include <gdrapi.h>\nint main(void) { %s; return 0; }\n' "$call" >"$work/conftest.c"
  "$cc" -I"$prefix/include" -o "$work/conftest" "$work/conftest.c" -L"$ucx_lib" -lgdrapi || fail "UCX --with-gdrcopy: $call"
done

installed_sim=$lib/peerlane/sim
[ -e "$installed_sim/libcuda.so.1" ] || installed_sim=
sim=$installed_sim
[ "$messages" != 0 ] || sim=
"$cmake" -S "$source/test/repo/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DSIMULATED_GPU="$sim" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" 2>&1 || { cat "$work/log"; fail "find_package"; }
"$cmake" --build "$work/consumer" >"$work/log" 2>&1 || { cat "$work/log"; fail "building by find_package"; }
"$work/consumer/use_gdrapi" || fail "use_gdrapi by find_package: $?"
"$work/consumer/use_peerlane" || fail "use_peerlane by find_package: $?"
"$work/consumer/use_communicator" "$work/meet" || fail "use_communicator by find_package: $?"
# The libraries find the simulated GPU by themselves: nothing but PEERLANE_GPU is set.
if [ -n "$installed_sim" ]; then
  export PEERLANE_SIM_LOG=off
  for program in use_simulated_gpu use_gdrapi use_peerlane; do
    PEERLANE_GPU=sim "$work/consumer/$program" >"$work/log" || { cat "$work/log"; fail "$program with PEERLANE_GPU=sim"; }
  done
  PEERLANE_GPU=sim "$work/consumer/use_gdrapi" | grep -q opened || fail "gdr_open with PEERLANE_GPU=sim"
  PEERLANE_GPU=sim "$work/consumer/use_peerlane" | grep -q dmabuf || fail "peerlane::session::open with PEERLANE_GPU=sim"
  # Without any GPU the error says how to have this one.
  if ! PEERLANE_GPU=real "$work/consumer/use_peerlane" | grep -qE 'dmabuf$|gdrdrv$|rm$'; then
    "$work/consumer/use_peerlane" | grep -q 'set PEERLANE_GPU=sim' || fail "the error without a GPU does not name PEERLANE_GPU=sim"
  fi
fi
if [ -n "$sim" ]; then
  export LD_LIBRARY_PATH=$sim:$LD_LIBRARY_PATH PEERLANE_SIM_LOG=off
  "$work/consumer/link_pingpong" callbacks || fail "link_pingpong, callbacks: $?"
  "$work/consumer/link_pingpong" "file:$work/meet" || fail "link_pingpong, file: $?"
fi
