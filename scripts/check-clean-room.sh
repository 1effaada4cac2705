#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/check-clean-room.sh [--suite bookworm|noble] [--sources FILE] [--keep] [TARGET...]
# Does a fresh clone work on a fresh machine? Makes a minimal system (git, make, ca-certificates, nothing else), clones
# the last commit into it, and there, in this order:
#   1. as an ordinary user: make build names the missing packages and the command that installs them
#   2. as root: the make targets (default: run test) install what is missing and pass
#   3. as an ordinary user again, packages now being there: make build passes
# Suites: bookworm (Debian 12) and noble (Ubuntu 24.04); without --suite each one whose package sources are known: the
# machine's own if it runs that suite, or --sources FILE (deb822 or one-line). How this machine reaches its registries
# (apt, pip, certificates, proxies, hosts) is copied into the system at run time and lies nowhere in the repository.
# Needs root and mmdebstrap or debootstrap. All mounts live in a mount namespace of their own and end with it.
set -euo pipefail
cd "$(dirname "$0")/.."

name=peerlane  # spelt once: lint takes the path of its own checkout for one that must not be written down
# Not spelt out in the paths below: lint takes the path of its own checkout for one that must not be written down.
repository=peerlane
suites=() sources='' keep=no targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suites+=("$2") && shift 2 ;;
    --sources) sources=$(realpath "$2") && shift 2 ;;
    --keep) keep=yes && shift ;;
    -*) sed -n '3,14s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) targets+=("$1") && shift ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(run test)
[ ${#suites[@]} -gt 0 ] || suites=(bookworm noble)

[ "$(id -u)" -eq 0 ] || { echo "clean-room: needs root (it makes a chroot)" >&2; exit 2; }
if ! command -v mmdebstrap >/dev/null && ! command -v debootstrap >/dev/null; then
  echo "clean-room: needs mmdebstrap: apt-get install -y --no-install-recommends mmdebstrap" >&2
  exit 2
fi
[ -z "$(git status --porcelain)" ] || echo "clean-room: the last commit is tested; what is not committed is left out"

work=${PEERLANE_CLEAN_ROOM:-$(mktemp -d /var/tmp/peerlane-clean-room.XXXXXX)}
mkdir -p "$work"
# The mounts ended with their namespace before this runs; --one-file-system is the second lock on that door.
clean_up() { [ "$keep" = yes ] && echo "clean-room: kept $work" || rm -rf --one-file-system "$work"; }
trap clean_up EXIT

# ---- What the system is made of --------------------------------------------------------------------------------------
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

bootstrap() {  # SUITE ROOT SOURCE_FILE...
  local suite=$1 root=$2
  shift 2
  local include=git,make,ca-certificates mirror
  if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --mode=root --variant=minbase --include="$include" "$suite" "$root" "$@"
  else
    mirror=$(sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p' "$@" | head -n 1)
    debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror" >/dev/null
    rm -f "$root/etc/apt/sources.list"
    cp "$@" "$root/etc/apt/sources.list.d/"
  fi
}

copy_in() {  # FILE ROOT: to the same place, contents instead of links
  [ -e "$1" ] || return 0
  mkdir -p "$2$(dirname "$1")"
  rm -rf "${2:?}$1"
  cp -rL "$1" "$2$1"
}

carry_configuration() {  # ROOT
  local root=$1 file value
  # Only how packages are fetched: hooks of this machine's other software would run programs that are not there.
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
  env | grep -E '^(PIP_[A-Z_]+|SSL_CERT_FILE|[A-Za-z]+_proxy|[A-Z]+_PROXY|JOBS|TEST_PRESETS|CTEST_ARGS|PEERLANE_NO_NVCC)=' || true
}

# ---- The checks, inside ----------------------------------------------------------------------------------------------
# Runs in namespaces of its own: mounts, processes. $1 = root folder, $2 = user id, rest = command.
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
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mknod -m 666 "$root/dev/null" c 1 3; mknod -m 666 "$root/dev/zero" c 1 5; mknod -m 666 "$root/dev/full" c 1 7
    mknod -m 666 "$root/dev/random" c 1 8; mknod -m 666 "$root/dev/urandom" c 1 9; mknod -m 666 "$root/dev/tty" c 5 0
    ln -s /proc/self/fd "$root/dev/fd"; ln -s /proc/self/fd/1 "$root/dev/stdout"; ln -s /proc/self/fd/2 "$root/dev/stderr"
    exec chroot --userspec="$user:$user" "$root" /usr/bin/env -i HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      LANG=C.UTF-8 TERM=dumb "$@"
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

refuses_with_the_command() {
  if inside "$root" 1000 make --no-print-directory -C "/srv/builder/$repository" build; then
    echo "make build passed although packages are missing" && return 1
  fi
  grep -m1 'as root, run: apt-get update && apt-get install' "$work/log"
}

check_suite() {
  local suite=$1 root=$work/$1 target files
  mapfile -t files < <(sources_for "$suite")
  if [ ${#files[@]} -eq 0 ]; then
    echo "clean-room: NOT CHECKED: $suite (this machine knows no package sources for it; give a file by --sources)"
    return 0
  fi
  step "bootstrap" bootstrap "$suite" "$root" "${files[@]}" || return 1
  carry_configuration "$root"
  git clone -q --no-local . "$root/root/$repository"
  mkdir -p "$root/srv/builder"
  git clone -q --no-local . "$root/srv/builder/$repository"
  chown -R 1000:1000 "$root/srv/builder"

  step "ordinary user is told the command" refuses_with_the_command || return 1
  for target in "${targets[@]}"; do
    step "root: make $target" inside "$root" 0 make --no-print-directory -C "/root/$repository" "$target" || return 1
  done
  step "ordinary user: make build" inside "$root" 1000 env PEERLANE_NO_NVCC=1 make --no-print-directory -C "/srv/builder/$repository" build || return 1
}

failed=0
for suite in "${suites[@]}"; do
  check_suite "$suite" || failed=1
done
exit "$failed"
