#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# in_system.sh STEP: one step of scripts/check-packages.sh, run as root in a system of its own, where the folder of this file holds
# debs/ (the packages), older/ (the same as an older version), stock/ (stock.sh) and consumer/. The last line sums up.
# shellcheck disable=SC2046 # deb and pkg-config print lists of words, none of which has blanks
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export DEBIAN_FRONTEND=noninteractive
lib=/usr/lib/$(dpkg --print-architecture | sed 's/amd64/x86_64/; s/arm64/aarch64/')-linux-gnu
export INITRD=No  # a kernel image that the headers bring along makes none: minutes saved
drivers='linux-headers-amd64 linux-headers-6.12-amd64'

has() { grep "$@" >/dev/null; }  # not grep -q: it would leave early, and break the pipe of who still writes
fail() { echo "FAILED: $*" && exit 1; }
apt_install() { apt-get install -y -q --no-install-recommends "$@"; }
deb() { local name; for name; do echo "$here/debs/${name}"_*.deb; done; }
state() { dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | tr -d ' ' || true; }
installed() { [ "$(state "$1")" = ii ] || fail "$1 is not installed: '$(state "$1")'"; }
gone() { [ "$(state "$1")" != ii ] || fail "$1 is still installed"; }
owner_of() { dpkg -S "$1" 2>/dev/null | sed 's/[:,].*//'; }
as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp "$@"; }
# Every file of the system that dpkg, apt and logs do not change by themselves.
files_of_system() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /srv -o -path /var \) -prune -o -print | sort; }

# Ours on a system that has nothing: by dpkg alone, so nothing else is needed.
step_install() {
  files_of_system >/srv/before
  dpkg -i $(deb libgdrapi2-peerlane libpeerlane0 libpeerlane-store0 libgdsync1-peerlane peerlane peerlane-compat peerlane-mpi)
  as_user peerlane --version | has '^peerlane [0-9]' || fail "peerlane --version"
  as_user env PEERLANE_GPU=sim peerlane demo >/tmp/demo 2>&1 || { cat /tmp/demo; fail "peerlane demo"; }
  grep -qi simulated /tmp/demo || fail "the demo does not say that the GPU is simulated"
  as_user env PEERLANE_GPU=sim gdrcopy_sanity >/tmp/sanity 2>&1 || { tail -n 20 /tmp/sanity; fail "gdrcopy_sanity"; }
  as_user env PEERLANE_GPU=sim peerlane doctor | grep 'usable mapping backends' || fail "peerlane doctor"
  ldconfig -p | has 'libgdrapi.so (' || fail "the linker does not find libgdrapi.so"
  ldconfig -p | has 'libgdrapi.so.2 (' || fail "the linker does not find libgdrapi.so.2"
  echo "$(grep -c . /tmp/demo) lines of demo on the simulated GPU, as an ordinary user"
}

step_remove() {
  dpkg -r peerlane-compat peerlane peerlane-mpi
  dpkg -P peerlane-compat peerlane peerlane-mpi libpeerlane-store0 libgdsync1-peerlane libpeerlane0 libgdrapi2-peerlane
  files_of_system >/srv/after
  diff <(grep -v '^/etc/ld.so.cache$' /srv/before) <(grep -v '^/etc/ld.so.cache$' /srv/after) || fail "the system is not as it was before"
  ! dpkg-query -W | grep -i peerlane || fail "dpkg remembers some"
  echo "not a file is left"
}

# The stock packages first, then ours: by apt, which asks no questions that matter, and dpkg where it can.
step_replace_stock() {
  apt_install "$here"/stock/*.deb
  [ "$(owner_of "$lib/libgdrapi.so.2")" = libgdrapi ] || fail "the stand-ins are not in place"
  # The library alone, by dpkg, under the stock tools: the meta package, which insists on its own versions, is in the way.
  ! dpkg -i $(deb libgdrapi2-peerlane) || fail "dpkg broke the meta package gdrcopy"
  dpkg -r gdrcopy
  dpkg -i $(deb libgdrapi2-peerlane)
  gone libgdrapi
  installed gdrcopy-tests
  installed gdrdrv-dkms
  [ "$(owner_of "$lib/libgdrapi.so.2")" = libgdrapi2-peerlane ] || fail "libgdrapi.so.2 is not ours"
  apt-get check
  # The whole of ours over the rest of the stock's, with headers that the stock library package had.
  apt_install $(deb libgdrapi2-peerlane libpeerlane0 libpeerlane-store0 libgdsync1-peerlane libpeerlane-dev peerlane peerlane-compat)
  gone gdrcopy-tests
  installed gdrdrv-dkms
  [ "$(readlink -f /usr/bin/sanity)" = "$lib/peerlane/peerlane" ] || fail "/usr/bin/sanity is not ours"
  [ "$(owner_of /usr/include/gdrapi.h)" = libpeerlane-dev ] || fail "/usr/include/gdrapi.h is not ours"
  apt-get check
  # And with the meta package there, apt takes it away by itself.
  apt-get purge -y -q '*peerlane*'
  apt_install "$here"/stock/*.deb
  apt_install $(deb libgdrapi2-peerlane)
  gone gdrcopy
  echo "ours replace libgdrapi and gdrcopy-tests, go with the stock gdrcopy-tests and gdrdrv-dkms, and with the meta package removed"
}

step_back_to_stock() {
  apt_install $(deb libpeerlane0 peerlane peerlane-compat libpeerlane-store0 libgdsync1-peerlane libpeerlane-dev)
  apt_install "$here"/stock/*.deb
  gone libgdrapi2-peerlane
  gone peerlane-compat
  grep -q stock "$lib/libgdrapi.so.2" || fail "libgdrapi.so.2 is not the stock one"
  grep -q stock /usr/include/gdrapi.h || fail "gdrapi.h is not the stock one"
  grep -q stock /usr/bin/sanity || fail "sanity is not the stock one"
  apt-get check
  apt-get purge -y -q gdrcopy gdrcopy-tests libgdrapi gdrdrv-dkms '*peerlane*'
  echo "apt takes the stock packages back"
}

step_upgrade() {
  apt_install $(printf '%s\n' "$here"/older/*.deb | grep -v dkms)
  [[ $(dpkg-query -W -f='${Version}' peerlane) == 0.0.9-* ]] || fail "the older version is not there"
  apt_install $(printf '%s\n' "$here"/debs/*.deb | grep -v dkms)
  [ "$(dpkg-query -W -f='${Version}\n' '*peerlane*' libgdrapi2-peerlane libgdsync1-peerlane | sort -u | grep -c .)" = 1 ] || fail "versions are mixed"
  ! dpkg-query -W -f='${Version}\n' '*peerlane*' | has '^0\.0\.9' || fail "the older version is still there"
  as_user env PEERLANE_GPU=sim peerlane demo >/tmp/demo 2>&1 || { cat /tmp/demo; fail "peerlane demo"; }
  echo "0.0.9 to $(dpkg-query -W -f='${Version}' peerlane)"
}

step_develop() {
  apt-get update -q
  apt_install gcc libc6-dev pkg-config
  local name
  for name in gdrapi peerlane peerlane_store gdsync; do pkg-config --exists "$name" || fail "pkg-config knows no $name"; done
  [ -z "$(pkg-config --cflags gdrapi)" ] || fail "flags for a folder that compilers know: $(pkg-config --cflags gdrapi)"
  cc -Wall -Wextra -Werror -o /tmp/use_gdrapi "$here/consumer/use_gdrapi.c" $(pkg-config --cflags --libs gdrapi)
  cc -Wall -Wextra -Werror -o /tmp/map_and_write "$here/consumer/map_and_write.c" $(pkg-config --cflags --libs peerlane) "$lib/peerlane/sim/libcuda.so.1"
  LD_LIBRARY_PATH=$lib/peerlane/sim as_user /tmp/use_gdrapi
  LD_LIBRARY_PATH=$lib/peerlane/sim as_user /tmp/map_and_write
}

# The module for two kernels, from nothing, from an older version, in place of the stock package; then nothing is left.
step_dkms() {
  local kernels kernel
  # shellcheck disable=SC2086 # a list of words
  apt_install dkms $drivers
  mapfile -t kernels < <(find /lib/modules -mindepth 1 -maxdepth 1 -printf '%f\n' | sort)
  [ "${#kernels[@]}" -ge 2 ] || fail "headers of one kernel only"
  apt_install "$here"/older/peerlane-gdrdrv-dkms_*.deb
  dkms status | has 'peerlane-gdrdrv/0\.0\.9' || fail "the older version was not built"
  apt_install "$(deb peerlane-gdrdrv-dkms)"
  ! dkms status | grep 'peerlane-gdrdrv/0\.0\.9' || fail "the older version is still known to DKMS"
  for kernel in "${kernels[@]}"; do
    dkms status -k "$kernel" | has '^peerlane-gdrdrv/.*: installed' || { dkms status; fail "not installed for $kernel"; }
    modinfo -k "$kernel" -F vermagic gdrdrv | has "^$kernel " || fail "gdrdrv for $kernel is built for another"
    modinfo -k "$kernel" -F license gdrdrv | has 'Dual MIT/GPL' || fail "another gdrdrv for $kernel"
  done
  [ -e /lib/udev/rules.d/70-gdrdrv.rules ] && [ -e /usr/lib/modprobe.d/peerlane-gdrdrv.conf ] || fail "udev's rule or modprobe's line"
  apt_install "$here"/stock/gdrdrv-dkms_*.deb
  gone peerlane-gdrdrv-dkms
  apt_install "$(deb peerlane-gdrdrv-dkms)"
  gone gdrdrv-dkms
  dpkg -P peerlane-gdrdrv-dkms
  [ -z "$(dkms status)" ] || fail "DKMS remembers: $(dkms status)"
  [ -z "$(find /lib/modules /usr/src /var/lib/dkms -name '*gdrdrv*')" ] || fail "left: $(find /lib/modules /usr/src /var/lib/dkms -name '*gdrdrv*')"
  echo "built and installed for ${kernels[*]}; upgraded, swapped with the stock package's stand-in, purged"
}

"step_$1"
