#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debug_kernel.sh FOLDER: builds a Linux 6.1 with KASAN, lockdep, kmemleak and fault injection from the distribution's
# source package into FOLDER, once for each version of source and configuration: FOLDER/current then leads to a tree with
# arch/x86/boot/bzImage, against which modules can be built. About 6 minutes on two cores, 2 GiB of disk.
# Needs: linux-source-6.1 flex bison bc libelf-dev. Environment: JOBS.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: debug_kernel.sh FOLDER}
jobs=${JOBS:-$(nproc)}
source=/usr/src/linux-source-6.1.tar.xz

missing=()
[ -e "$source" ] || missing+=(linux-source-6.1)
for tool in flex bison bc; do command -v "$tool" >/dev/null || missing+=("$tool"); done
[ -e /usr/include/gelf.h ] || missing+=(libelf-dev)
if [ ${#missing[@]} -gt 0 ]; then
  echo "debug kernel: missing packages: ${missing[*]} (apt-get install --no-install-recommends ${missing[*]})" >&2
  exit 1
fi

version=$(dpkg-query -W -f='${Version}' linux-source-6.1 | tr -c 'A-Za-z0-9.\n' _)
key=$version-$(sha256sum "$here/debug.config" | cut -c1-12)
tree=$folder/$key
mkdir -p "$folder"
if [ ! -e "$tree/complete" ]; then
  echo "debug kernel: building $key"
  rm -rf "$tree"
  mkdir "$tree"
  tar -C "$tree" --strip-components=1 -xf "$source"
  make -s -C "$tree" tinyconfig
  "$tree/scripts/kconfig/merge_config.sh" -m -O "$tree" "$tree/.config" "$here/debug.config" >"$tree/merge.log"
  make -s -C "$tree" olddefconfig
  for option in KASAN PROVE_LOCKING DEBUG_KMEMLEAK FAILSLAB X86_PAT MODULE_UNLOAD SMP; do
    grep -q "^CONFIG_$option=y" "$tree/.config" || { echo "debug kernel: CONFIG_$option did not survive" >&2; exit 1; }
  done
  nice make -s -C "$tree" -j "$jobs" bzImage modules >"$tree/build.log" 2>&1 || { tail -n 20 "$tree/build.log" >&2; exit 1; }
  touch "$tree/complete"
fi
ln -sfn "$key" "$folder/current"
echo "debug kernel: $(readlink -f "$folder/current")"
