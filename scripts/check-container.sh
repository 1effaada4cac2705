#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/check-container.sh [--suite bookworm|noble] [--sources FILE] [--keep]
# Tests that packaging/container/Containerfile makes a working image: builds the last commit with buildah, and runs the image's commands
# on the simulated GPU. Needs no container engine, image registry or GPU: the base image is a minimal system that this script makes from
# the distribution's packages, under the name that the recipe asks for. Images are in a separate folder, which is removed.
# --suite, --sources: as in check-clean-room.sh. Needs root, buildah, mmdebstrap or debootstrap, a mirror, and about 6 GiB of disk.
# Exit code 77, with the reason: something that it needs is missing.
# Environment: CCACHE_DIR: a compiler cache for a ccache in the base image. PEERLANE_CLEAN_ROOM: a folder that --keep left, whose base
# image is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

suite='' sources='' keep=no
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suite=$2 && shift 2 ;;
    --sources) sources=$(realpath "$2") && shift 2 ;;
    --keep) keep=yes && shift ;;
    *) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 2 ;;
  esac
done

not_checked() { echo "container: NOT CHECKED: $*" && exit 77; }
[ "$(id -u)" -eq 0 ] || not_checked "needs root (it makes a system in a folder)"
command -v buildah >/dev/null || not_checked "no buildah (apt-get install -y --no-install-recommends buildah)"
command -v mmdebstrap >/dev/null || command -v debootstrap >/dev/null ||
  not_checked "no mmdebstrap (apt-get install -y --no-install-recommends mmdebstrap)"

. scripts/clean_room.sh
suite=${suite:-${own_suite:-bookworm}}
mapfile -t files < <(sources_for "$suite")
[ ${#files[@]} -gt 0 ] || not_checked "$suite (this machine knows no package sources for it; give a file by --sources)"
[ -z "$(git status --porcelain)" ] || echo "container: the last commit is tested; what is not committed is left out"

recipe=packaging/container/Containerfile
base=$(sed -n 's/^ARG BASE=//p' "$recipe") arguments=()
case "$suite" in
  bookworm) ;;
  noble) base=ubuntu:24.04 arguments=(--build-arg BASE=ubuntu:24.04) ;;
  *) not_checked "$suite (no image's name is known for it)" ;;
esac
# The name under which a registry would have the official image.
full_base=docker.io/library/$base
cache=()
[ -z "${CCACHE_DIR:-}" ] || cache=(--volume "$CCACHE_DIR:/var/cache/ccache")
# vfs and chroot need no file system and no namespace that a machine may lack.
in_store() { local verb=$1 && shift && TMPDIR="$work" buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$verb" "$@"; }

# ---- The base image --------------------------------------------------------------------------------------------------
# These functions check each command themselves, because `set -e` has no effect where `step` calls them.
make_base() {
  local root=$work/base made variable packages=ca-certificates
  rm -rf --one-file-system "$root"
  [ "${#cache[@]}" -eq 0 ] || packages+=,ccache
  bootstrap "$suite" "$root" "$packages" "${files[@]}" || return 1
  # The cache's size limit is its owner's decision.
  [ "${#cache[@]}" -eq 0 ] || printf '%s = %s\n' cache_dir /var/cache/ccache base_dir /src hash_dir false max_size 0 \
    sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime >"$root/etc/ccache.conf"
  carry_configuration "$root"
  made=$(in_store from scratch) && in_store add --quiet "$made" "$root" / && in_store config --cmd /bin/bash "$made" || return 1
  while read -r variable; do
    in_store config --env "$variable" "$made" || return 1
  done < <(environment | grep -vE '^(JOBS|CTEST_ARGS)=')
  in_store commit --quiet --rm "$made" "$full_base" || return 1
  rm -rf --one-file-system "$root"
  in_store images --format '{{.Size}}' "$full_base"
}

# ---- The image -------------------------------------------------------------------------------------------------------
build_image() {
  rm -rf "$work/context"
  git clone -q --no-local . "$work/context" || return 1
  in_store bud --isolation chroot --pull-never --file "$work/context/$recipe" --tag localhost/peerlane "${arguments[@]}" "${cache[@]}" \
    "$work/context" || return 1
  echo "$(in_store images --format '{{.Size}}' localhost/peerlane) with the base's $(in_store images --format '{{.Size}}' "$full_base")"
}

said() { grep "$@" >/dev/null || { echo "FAILED: not said: ${*: -1}" && return 1; }; }  # not grep -q: the writer would get SIGPIPE
# Runs the image as a container engine does: with its user, environment and entry point; without arguments, its default command.
run_image() {
  local entry command
  mapfile -t entry < <(in_store inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' localhost/peerlane | grep .)
  mapfile -t command < <(in_store inspect --type image --format '{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}' localhost/peerlane | grep .)
  [ $# -eq 0 ] || command=("$@")
  in_store run --isolation chroot "$container" -- "${entry[@]}" "${command[@]}"
}
in_image() { in_store run --isolation chroot "$container" -- "$@"; }

runs_the_demo() {
  run_image demo >"$work/said" 2>&1 || { cat "$work/said" && return 1; }
  said -i simulated <"$work/said" || return 1
  echo "$(grep -c . "$work/said") lines of demo on the simulated GPU"
}

# Without a GPU the default command reports a problem, and that it runs in a container.
finds_no_gpu() {
  local code=0
  run_image >"$work/said" 2>&1 || code=$?
  cat "$work/said"
  [ "$code" -ne 0 ] || { echo "FAILED: doctor is content without a GPU" && return 1; }
  said 'this container has no' <"$work/said" && said -e '--gpus all' <"$work/said" || return 1
  echo "exit code $code: $(grep -o 'this container has no .*' "$work/said")"
}

knows_the_simulated_gpu() {
  in_image env PEERLANE_GPU=sim peerlane info >"$work/said" 2>&1 || { cat "$work/said" && return 1; }
  said -i simulated <"$work/said" || return 1
  in_image env PEERLANE_GPU=sim peerlane doctor >"$work/said" 2>&1 || { cat "$work/said" && return 1; }
  grep -o -m1 'usable mapping backends.*' "$work/said"
}

runs_drop_in_names() {
  in_image env PEERLANE_GPU=sim gdrcopy_sanity >"$work/said" 2>&1 || { cat "$work/said" && return 1; }
  grep '^Total' "$work/said"
}

holds_nothing_else() {
  local left
  [ "$(in_image id -u)" = 65534 ] || { echo "FAILED: it runs as $(in_image id -u)" && return 1; }
  left=$(in_image find /src /tmp /var/lib/apt/lists /usr/bin/c++ -mindepth 0 ! -type d 2>/dev/null || true)
  [ -z "$left" ] || { echo "FAILED: left in the image: $left" && return 1; }
  echo "nobody's, without sources, packages and compiler"
}

if ! in_store images "$full_base" >/dev/null 2>&1; then step "base image $base" make_base || exit 1; fi
step "build" build_image || exit 1
container=$(in_store from --pull-never localhost/peerlane)
failed=0
step "demo" runs_the_demo || failed=1
step "doctor" finds_no_gpu || failed=1
step "simulated GPU" knows_the_simulated_gpu || failed=1
step "drop-in names" runs_drop_in_names || failed=1
step "contents" holds_nothing_else || failed=1
in_store rm "$container" >/dev/null
exit "$failed"
