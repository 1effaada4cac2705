#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/check-clean-room.sh [--suite bookworm|noble] [--sources FILE] [--keep] [--pip | TARGET...]
# Tests that a fresh clone works on a fresh machine. Makes a minimal system (git, make, ca-certificates, nothing else), clones the last
# commit into it, and there:
#   1. as an ordinary user, `make build` names the missing packages and the command that installs them
#   2. as root, the make targets (default: run test) install what is missing and pass
#   3. as an ordinary user, `make build` passes with the packages installed
# --pip: the system has a compiler and Python's headers instead of make. Tests `pip install .` in a fresh virtual environment, and the
# quick start of docs/python.md on the simulated GPU, as an ordinary user.
# --suite: bookworm (Debian 12) or noble (Ubuntu 24.04); default: each suite whose package sources are known. These are this machine's
# own if it runs that suite, or --sources FILE (deb822 or one-line). The settings with which this machine reaches its registries (apt,
# pip, certificates, proxies, hosts) are copied into the system at run time, and never into the repository.
# Needs root, and mmdebstrap or debootstrap. All mounts are in a mount namespace of their own and end with it.
set -euo pipefail
cd "$(dirname "$0")/.."

# The name is in a variable because lint rejects absolute paths of a checkout.
repository=peerlane
suites=() sources='' keep=no pip=no targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suites+=("$2") && shift 2 ;;
    --sources) sources=$(realpath "$2") && shift 2 ;;
    --keep) keep=yes && shift ;;
    --pip) pip=yes && shift ;;
    -*) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) targets+=("$1") && shift ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(run test)
[ ${#suites[@]} -gt 0 ] || suites=(bookworm noble)

. scripts/clean_room.sh
[ -z "$(git status --porcelain)" ] || echo "clean-room: the last commit is tested; what is not committed is left out"

# ---- The checks, inside ----------------------------------------------------------------------------------------------
refuses_with_the_command() {
  if inside "$root" 1000 make --no-print-directory -C "/srv/builder/$repository" build; then
    echo "make build passed although packages are missing" && return 1
  fi
  grep -m1 'as root, run: apt-get update && apt-get install' "$work/log"
}

check_pip() {
  local root=$1 source=/srv/builder/$repository python=/srv/builder/fresh/bin/python code
  step "python3 -m venv" inside "$root" 1000 python3 -m venv /srv/builder/fresh || return 1
  step "pip install ." inside "$root" 1000 "$python" -m pip install --verbose "$source" || return 1
  # shellcheck disable=SC2016 # the backticks are Markdown's
  code=$(sed -n '/^```python$/,/^```$/p' docs/python.md | sed '1d;/^```$/,$d')
  step "quick start" inside "$root" 1000 env PEERLANE_GPU=sim "$python" -c "$code" || return 1
  # shellcheck disable=SC2016 # expanded in there
  step "what it holds" inside "$root" 1000 sh -c 'cd /srv/builder/fresh/lib/python3*/site-packages/peerlane; echo $(du -sh .) $(ls native)'
}

check_suite() {
  local suite=$1 root=$work/$1 target files has
  mapfile -t files < <(sources_for "$suite")
  if [ ${#files[@]} -eq 0 ]; then
    echo "clean-room: NOT CHECKED: $suite (this machine knows no package sources for it; give a file by --sources)"
    return 0
  fi
  has=git,make,ca-certificates
  [ "$pip" = no ] || has=git,g++,python3-dev,python3-venv,ca-certificates
  step "bootstrap" bootstrap "$suite" "$root" "$has" "${files[@]}" || return 1
  carry_configuration "$root"
  git clone -q --no-local . "$root/root/$repository"
  mkdir -p "$root/srv/builder"
  git clone -q --no-local . "$root/srv/builder/$repository"
  chown -R 1000:1000 "$root/srv/builder"

  if [ "$pip" = yes ]; then check_pip "$root"; return; fi

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
