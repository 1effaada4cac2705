#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Minimal systems in folders, to test what happens on a fresh machine. Sourced by the check-*.sh scripts beside it.
# The settings with which this machine reaches its registries (apt, pip, certificates, proxies, hosts) are copied into the system at run
# time, and never into the repository. All mounts are in a mount namespace of their own and end with it.
# Input: `sources` (a file of package sources, or empty), `keep` (yes: the work folder stays). Output: `work` (a folder), and the
# functions below. `step` prints the variable `suite`.

[ "$(id -u)" -eq 0 ] || { echo "clean-room: needs root (it makes a chroot)" >&2; exit 2; }
if ! command -v mmdebstrap >/dev/null && ! command -v debootstrap >/dev/null; then
  echo "clean-room: needs mmdebstrap: apt-get install -y --no-install-recommends mmdebstrap" >&2
  exit 2
fi

keep=${keep:-no} sources=${sources:-}
work=${PEERLANE_CLEAN_ROOM:-$(mktemp -d /var/tmp/peerlane-clean-room.XXXXXX)}
mkdir -p "$work"
# The mounts have ended with their namespace before this runs; --one-file-system is a second protection.
clean_up() { [ "$keep" = yes ] && echo "clean-room: kept $work" || rm -rf --one-file-system "$work"; }
trap clean_up EXIT

# ---- Making the system -----------------------------------------------------------------------------------------------
own_suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

sources_for() {  # prints files with the package sources of a suite; fails if there are none
  local file found=1
  if [ -n "$sources" ]; then echo "$sources" && return 0; fi
  [ "$1" = "$own_suite" ] || return 1
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if [ -s "$file" ] && grep -q "$1" "$file"; then echo "$file" && found=0; fi
  done
  return "$found"
}

bootstrap() {  # SUITE ROOT PACKAGES SOURCE_FILE...: PACKAGES: further packages, separated by commas
  local suite=$1 root=$2 include=apt,$3 mirror  # apt: not among Ubuntu's smallest set
  shift 3
  if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --mode=root --variant=minbase --include="$include" "$suite" "$root" "$@"
  else
    mirror=$(sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p' "$@" | head -n 1)
    debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror" >/dev/null
    rm -f "$root/etc/apt/sources.list"
    cp "$@" "$root/etc/apt/sources.list.d/"
  fi
}

copy_in() {  # FILE ROOT: copies the file to the same path below ROOT, and follows links
  [ -e "$1" ] || return 0
  mkdir -p "$2$(dirname "$1")"
  rm -rf "${2:?}$1"
  cp -rL "$1" "$2$1"
}

carry_configuration() {  # ROOT
  local root=$1 file value
  # Only settings for fetching packages: hooks of other software on this machine would run programs that the system lacks.
  apt-config dump | grep '^Acquire::' | grep -viE '^Acquire::(Languages|GzipIndexes|CompressionTypes|IndexTargets)' \
    >"$root/etc/apt/apt.conf.d/00host" || true
  for file in /etc/apt/auth.conf /etc/apt/auth.conf.d /etc/resolv.conf /etc/hosts /etc/pip.conf \
    /etc/ssl/certs/ca-certificates.crt; do
    copy_in "$file" "$root"
  done
  if [ -f "$HOME/.config/pip/pip.conf" ]; then
    mkdir -p "$root/root/.config/pip"
    cp "$HOME/.config/pip/pip.conf" "$root/root/.config/pip/"
  fi
  for value in "${PIP_CERT:-}" "${PIP_FIND_LINKS:-}" "${SSL_CERT_FILE:-}"; do
    case "$value" in /*) copy_in "$value" "$root" ;; esac
  done
}

environment() {
  env | grep -E '^(PIP_[A-Z_]+|SSL_CERT_FILE|[A-Za-z]+_proxy|[A-Z]+_PROXY|JOBS|CTEST_ARGS|PEERLANE_NO_NVCC)=' || true
}

# ---- Running commands in it ------------------------------------------------------------------------------------------
# Runs a command in separate mount and process namespaces. $1 = root folder, $2 = user id, rest = command.
# As on every machine and in every container, the root is a mount, and there are terminals and /dev/net/tun. In a plain chroot, programs
# cannot use mount namespaces: "/" cannot be made private, and /proc/self/exe shows paths of the outer system.
inside() {
  local root=$1 user=$2 home
  shift 2
  home=/root
  [ "$user" = 0 ] || home=/srv/builder
  local variables=()
  mapfile -t variables < <(environment)
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --pid --fork --kill-child --propagation private bash -ec '
    root=$1 user=$2 home=$3; shift 3
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/net"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mknod -m 666 "$root/dev/net/tun" c 10 200
    mknod -m 666 "$root/dev/null" c 1 3; mknod -m 666 "$root/dev/zero" c 1 5; mknod -m 666 "$root/dev/full" c 1 7
    mknod -m 666 "$root/dev/random" c 1 8; mknod -m 666 "$root/dev/urandom" c 1 9; mknod -m 666 "$root/dev/tty" c 5 0
    ln -s /proc/self/fd "$root/dev/fd"; ln -s /proc/self/fd/1 "$root/dev/stdout"; ln -s /proc/self/fd/2 "$root/dev/stderr"
    pivot_root "$root" "$root/mnt"
    cd /
    umount -l /mnt
    # This shell remains the first process and reaps orphans: make as the first process loops forever when it inherits one.
    chroot --userspec="$user:$user" / /usr/bin/env -i HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      LANG=C.UTF-8 TERM=dumb "$@" || exit $?
    exit 0
  ' inside "$root" "$user" "$home" "${variables[@]}" "$@"
}

step() {  # NAME COMMAND...: prints the time taken, the end of the log on failure
  local name=$1 log=$work/log started=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    echo "clean-room: $suite: $name: passed ($((SECONDS - started)) s): $(tail -n 1 "$log")"
  else
    echo "clean-room: $suite: $name: FAILED ($((SECONDS - started)) s); the end of its output:"
    tail -n 40 "$log"
    return 1
  fi
}
