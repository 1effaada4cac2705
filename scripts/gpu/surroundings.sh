#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs `peerlane demo` and `copylat` in unusual environments on a real GPU: CUDA's variables, few descriptors, a small or missing /dev/shm,
# namespaces, limits. Needs root (for namespaces). Prints a line for each: exit status, seconds, the last line of an error. It builds
# nothing.
#   scripts/gpu/surroundings.sh <out folder of the build> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments out results -- "$@"
cp -r "$out" /tmp/peerlane-out && chmod -R a+rX /tmp/peerlane-out
said=$(mktemp)
trap 'rm -rf /tmp/peerlane-out "$said"' EXIT
program=/tmp/peerlane-out/peerlane

# meets "ACCEPTED STATUSES" name command...; status 1: refused with a reason
meets() {
  local right=$1 name=$2 begun=$EPOCHREALTIME code=0 why=''
  shift 2
  timeout -k 2 60 "$@" >"$said" 2>&1 </dev/null || code=$?
  case " $right " in *" $code "*) ;; *) why='  NOT EXPECTED' ;; esac
  [ "$code" -eq 0 ] || why+="  $(grep -v '^$' "$said" | tail -1 | cut -c1-160)"
  printf '%-44s %3d  %5.1f s%s\n' "$name" "$code" "$(awk "BEGIN{print $EPOCHREALTIME - $begun}")" "$why"
}

copylat=("$program" copylat -s 4K --budget-ms 4)
uuid=$(nvidia-smi -L | sed -n 's/.*UUID: \(GPU-[^)]*\)).*/\1/p' | head -1)
{
  for one in "CUDA_VISIBLE_DEVICES=$uuid" CUDA_LAUNCH_BLOCKING=1 CUDA_DEVICE_MAX_CONNECTIONS=1 PEERLANE_COPY_ENGINE=kernel PEERLANE_COPY_ENGINE=off \
    HOME=/nonexistent TMPDIR=/nonexistent MALLOC_PERTURB_=85; do
    meets 0 "${one/$uuid/UUID}" env "$one" "$program" demo
  done
  for one in CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MODULE_LOADING=EAGER CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 PEERLANE_BACKEND=rm LC_ALL=xx_YY; do
    meets 0 "$one" env "$one" "${copylat[@]}"
  done
  for one in CUDA_VISIBLE_DEVICES= CUDA_VISIBLE_DEVICES=99 CUDA_VISIBLE_DEVICES=GPU-zzz; do meets 1 "$one" env "$one" "${copylat[@]}"; done
  meets 0 "no variable at all" env -i "$program" demo
  for one in 20 40; do meets 1 "ulimit -n $one" bash -c "ulimit -n $one; exec $program demo"; done
  meets 0 "ulimit -n 128" bash -c "ulimit -n 128; exec $program demo"
  meets 0 "ulimit -l 0, without rights" "${nobody[@]}" bash -c "ulimit -l 0; exec $program demo"
  meets 1 "ulimit -s 256" bash -c "ulimit -s 256; exec $program demo"
  meets 1 "ulimit -f 4096" bash -c "ulimit -f 4096; exec $program demo"
  meets 0 "one CPU" taskset 1 "$program" demo
  meets 0 "/dev/shm of 64 KiB" unshare -m bash -c "mount -t tmpfs -o size=64k x /dev/shm; exec $program demo"
  meets 0 "no /dev/shm" unshare -m bash -c "umount -l /dev/shm; exec $program demo"
  meets 0 "first process of a name space" unshare -pf --mount-proc "$program" demo
  meets 0 "no network" unshare -n "$program" demo
  meets 0 "no /sys" unshare -m bash -c "mount -t tmpfs x /sys; exec $program demo"
  meets 1 "no /proc" unshare -m bash -c "mount -t tmpfs x /proc; exec $program demo"
} | tee "$results/surroundings.txt"
! grep -q 'NOT EXPECTED' "$results/surroundings.txt"
