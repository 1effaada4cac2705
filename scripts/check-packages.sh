#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/check-packages.sh [--suite bookworm|noble] [--sources FILE] [--keep] [--step NAME]... [PRESET]
# Tests the Debian packages of a finished build on a fresh machine. Makes them twice with debs.sh and compares both; also makes a set of
# version 0.0.9, and stand-ins for the stock packages. Then, in a minimal system: installs and uses them, removes them without a trace,
# replaces the stock packages and goes back, upgrades, compiles against the headers, and builds the kernel module by DKMS for two kernels.
# --suite, --sources: as in check-clean-room.sh. --step: only these (install remove replace_stock back_to_stock upgrade develop dkms).
# Needs root, dpkg-dev, mmdebstrap or debootstrap, and a mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

suites=() sources='' keep=no steps=() preset=release
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suites+=("$2") && shift 2 ;;
    --sources) sources=$(realpath "$2") && shift 2 ;;
    --keep) keep=yes && shift ;;
    --step) steps+=("$2") && shift 2 ;;
    -*) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) preset=$1 && shift ;;
  esac
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm noble)
[ ${#steps[@]} -gt 0 ] || steps=(install remove replace_stock back_to_stock upgrade develop dkms)

. scripts/clean_room.sh
. scripts/system_layout.sh
SOURCE_DATE_EPOCH=$(project_time)  # read once, because a commit in between would change the packages
export SOURCE_DATE_EPOCH

check_suite() {
  local suite=$1 root=$work/$1 files one
  mapfile -t files < <(sources_for "$suite")
  if [ ${#files[@]} -eq 0 ]; then
    echo "clean-room: NOT CHECKED: $suite (this machine knows no package sources for it; give a file by --sources)"
    return 0
  fi
  # PEERLANE_CLEAN_ROOM names a folder that --keep left, which is used again.
  if [ ! -d "$root/etc" ]; then
    step "bootstrap" bootstrap "$suite" "$root" ca-certificates "${files[@]}" || return 1
    carry_configuration "$root"
  fi
  rm -rf "$root/srv/packages"
  cp -r "$work/packages" "$root/srv/packages"
  for one in "${steps[@]}"; do
    step "$one" inside "$root" 0 bash /srv/packages/in_system.sh "$one" || return 1
  done
}

rm -rf "$work/packages"
mkdir "$work/packages"
scripts/debs.sh --quick --out "$work/packages/debs" "$preset"
scripts/debs.sh --quick --out "$work/packages/older" --version 0.0.9 "$preset" >"$work/log" || { cat "$work/log"; exit 1; }
scripts/debs.sh --quick --out "$work/again" "$preset" >"$work/log" || { cat "$work/log"; exit 1; }
diff -r "$work/packages/debs" "$work/again" || { echo "clean-room: the same build, packed twice, differs" && exit 1; }
test/packages/stock.sh "$work/packages/stock"
cp test/packages/in_system.sh "$work/packages/"
cp -r test/repo/consumer "$work/packages/consumer"

failed=0
for suite in "${suites[@]}"; do
  check_suite "$suite" || failed=1
done
exit "$failed"
