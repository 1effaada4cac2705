#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/setup.sh [--tests]: installs what the build needs and this machine lacks; --tests: also what the tests need.
# As root it installs Debian or Ubuntu packages. As an ordinary user it prints the one command that does, and stops. Packages from PyPI go
# into the private Python environment .venv: nanobind, and the CUDA compiler if none is found. If nothing is missing, it is silent and
# quick. Works on Debian 12 and Ubuntu 24.04. The variable CI has no effect.
# Environment: PEERLANE_NO_NVCC=1: do not install the CUDA compiler. PEERLANE_ALLOW_SKIPS=1: an ordinary user may continue without the
# packages that only tests need; the tests that miss one are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=no
[ "${1:-}" != --tests ] || tests=yes

# Checked here, before anything is downloaded or compiled, so that no later program fails for this reason.
for place in . build build/*/CMakeCache.txt .venv; do
  if [ -e "$place" ] && [ ! -w "$place" ]; then
    name=$(realpath "$place")
    echo "setup: $(id -un 2>/dev/null || id -u) may not write $name (it belongs to $(stat -c %U "$name"))" >&2
    if [ "$place" = . ]; then
      echo "setup: build in a copy of your own: cp -r '$PWD' ~/ && make -C ~/'${PWD##*/}'" >&2
    else
      echo "setup: an earlier make as another user left it; as that user or root: rm -rf '$PWD/build' '$PWD/.venv', or: chown -R $(id -un 2>/dev/null || id -u) '$PWD/build' '$PWD/.venv'" >&2
    fi
    exit 1
  fi
done

distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}" || echo unknown)
# Other distributions name their packages differently, so there the check is for commands, and for the libraries that CMake finds.
architecture=$(dpkg --print-architecture 2>/dev/null || echo unknown)

# ---- The packages ------------------------------------------------------------------------------------------------------
build_packages=(g++ cmake ninja-build pkg-config python3 python3-dev python3-venv
  libhwloc-dev nlohmann-json3-dev libcli11-dev          # the program
  libucx-dev libucx0 libibverbs-dev                     # messages
  libopenmpi-dev libmpich-dev                           # the MPI shim, and ranks that mpirun starts
  librocksdb-dev liburing-dev libre2-dev libasio-dev libssl-dev)   # the store
build_modules=nanobind
build_wheels=('nanobind>=2.2')

test_packages=(libgtest-dev openmpi-bin mpich clang-format g++-aarch64-linux-gnu qemu-user dpkg-dev lintian rpm rpmlint
  openssl etcd-server slurmctld slurmd slurm-client munge iproute2 fonts-dejavu-core python3-jsonschema man-db zsh shellcheck)
# Ubuntu has soft-RoCE in a package with the kernel's release in its name, which only the package lists show.
# apt-cache speaks the reader's language.
# shellcheck disable=SC2016 # expanded at installation, or when a user pastes the command
extra_modules='linux-modules-extra-$(LC_ALL=C apt-cache depends linux-image-virtual | sed -n "s/^ *Depends: linux-image-//p")'
# Ubuntu's package of Chromium is a link to a snap, which does not run in containers: there the report's page test is skipped.
[ "$distribution" = ubuntu ] || test_packages+=(chromium)
# The kernel driver's tests run emulated machines: QEMU, kernels with their headers, and what gives such a machine soft-RoCE.
if [ "$architecture" = amd64 ]; then
  test_packages+=(qemu-system-x86 busybox-static zstd sparse ibverbs-providers)
  case "$distribution" in
    ubuntu) test_packages+=(linux-image-virtual linux-headers-virtual "$extra_modules") ;;
    *) test_packages+=(linux-image-amd64 linux-headers-amd64 linux-headers-6.12-amd64) ;;
  esac
fi
test_modules='mpi4py, numpy, pytest, scikit_build_core, mypy, plotly, rich'
test_wheels=(mpi4py numpy pytest 'scikit-build-core>=0.10' 'mypy>=1.11' 'plotly>=6,<8' 'rich>=13' 'nvidia-nvml-dev==13.0.*')

# The last configure step may have missed what is now installed: scripts/build.sh then runs it again.
installed_something() { mkdir -p build && touch build/setup-installed; }

# ---- Installing --------------------------------------------------------------------------------------------------------
installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' && return 0
  # A tool that is on PATH from elsewhere (PyPI, a module system, another distribution) is as good as the package.
  case "$1" in
    g++ | cmake | pkg-config | python3 | clang-format | openssl | rpm | zsh | shellcheck) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    python3-jsonschema) python3 -c 'import jsonschema' 2>/dev/null ;;
    "$extra_modules") compgen -G '/lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*' >/dev/null ;;
    man-db) command -v man >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    python3-dev) python3 -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null ;;
    *) return 1 ;;
  esac
}

missing_of() {
  local package
  for package in "$@"; do installed "$package" || echo "$package"; done
}

mapfile -t needed < <(missing_of "${build_packages[@]}")
extra=()
if [ "$tests" = yes ]; then mapfile -t extra < <(missing_of "${test_packages[@]}"); fi
wanted=("${needed[@]}" "${extra[@]}")
# If there is sudo, it is before each of the two commands: before the whole line it would not apply to the second.
command_for() { echo "${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends $*"; }
sudo='' who='as root, run'
if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null; then sudo='sudo ' who='run'; fi

install_wanted() {
  local package names=()
  apt-get update -qq || return 1
  for package in "${wanted[@]}"; do
    if [ "$package" = "$extra_modules" ]; then package=$(eval echo "$extra_modules"); fi
    names+=("$package")
  done
  # INITRD=No: the tests make their own initramfs, and building the usual ones takes minutes.
  # Waits for a machine that installs updates just after its start.
  INITRD=No apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${names[@]}"
}

if [ ${#wanted[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: missing packages: ${wanted[*]}" >&2
    echo "setup: $who: $(command_for "${wanted[@]}")" >&2
    if [ ${#needed[@]} -gt 0 ] || [ "${PEERLANE_ALLOW_SKIPS:-0}" != 1 ]; then
      [ ${#needed[@]} -gt 0 ] || echo "setup: or run make test with PEERLANE_ALLOW_SKIPS=1: tests that miss a package are then skipped" >&2
      exit 1
    fi
  else
    echo "setup: installing ${#wanted[@]} packages and what they need: ${wanted[*]}"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # Packages must not start their servers (etcd): if there is no policy, this one prevents it.
    policy=/usr/sbin/policy-rc.d own_policy=no
    if [ ! -e "$policy" ]; then
      own_policy=yes
      printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    fi
    clean_up() {
      rm -f "$log"
      [ "$own_policy" = no ] || rm -f "$policy"
    }
    trap clean_up EXIT
    if ! install_wanted >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "setup: apt-get failed; this is what was tried: $(command_for "${wanted[@]}")" >&2
      exit 1
    fi
    clean_up
    trap - EXIT
    installed_something
  fi
fi

# Headers of arm64, to compile the driver for it as well; they are unpacked, not installed.
if [ "$tests" = yes ] && [ "$architecture" = amd64 ] && [ "$distribution" = debian ] && [ ! -e build/arm64-headers/current ] &&
  [ "$(id -u)" -eq 0 ]; then
  echo "setup: fetching arm64 kernel headers into build/arm64-headers (for a test)"
  test/kernel/arm64_headers.sh build/arm64-headers >/dev/null 2>&1 ||
    echo "setup: arm64 kernel headers could not be fetched; the test that needs them is skipped"
fi

# ---- The CUDA compiler -------------------------------------------------------------------------------------------------
# This machine's compiler if there is one; CMake searches the same places in this order.
find_nvcc() {
  local candidate
  for candidate in "${CMAKE_CUDA_COMPILER:-}" "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    .venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then echo "$candidate" && return 0; fi
  done
  return 1
}
want_nvcc=no
if [ "${PEERLANE_NO_NVCC:-0}" != 1 ] && [ ! -e .venv/nvcc-failed ] && ! find_nvcc >/dev/null; then want_nvcc=yes; fi

# ---- PyPI --------------------------------------------------------------------------------------------------------------
has_modules() { .venv/bin/python -c "import $1" 2>/dev/null; }
make_venv() {
  mkdir -p build
  [ -x .venv/bin/python ] && return 0
  # The next run would take an incomplete environment for a complete one.
  trap 'rm -rf .venv; exit 130' INT TERM
  python3 -m venv .venv >build/setup-venv.log 2>&1 || { rm -rf .venv && return 1; }
  trap - INT TERM
}
fetch() {  # LOG PACKAGE...
  local log=$1
  shift
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@" >"$log" 2>&1
}

wheels=()
has_modules "$build_modules" || wheels+=("${build_wheels[@]}")
has_nvml_header() { compgen -G '.venv/lib/python3*/site-packages/nvidia/cu13/include/nvml.h' >/dev/null; }
if [ "$tests" = yes ] && { ! has_modules "$test_modules" || ! has_nvml_header; }; then wheels+=("${test_wheels[@]}"); fi
if [ ${#wheels[@]} -gt 0 ]; then
  echo "setup: fetching ${wheels[*]} into .venv"
  if ! make_venv || ! fetch build/setup-wheels.log "${wheels[@]}"; then
    tail -n 5 build/setup-venv.log build/setup-wheels.log 2>/dev/null >&2 || true
    echo "setup: Python packages could not be fetched from PyPI: is a registry reached (pip config, proxy)?" >&2
    exit 1
  fi
  installed_something
fi

# NIXL's wheel lists PyTorch as a dependency but works without it, so it is installed alone (60 MB to fetch, 220 MB on disk).
nixl_wheel=nixl-cu13==1.5.1
has_nixl() { .venv/bin/python -m pip show --quiet "${nixl_wheel%%=*}" 2>/dev/null && has_modules nixl_cu13; }
if [ "$tests" = yes ] && [[ $architecture = amd64 || $architecture = arm64 ]] && ! has_nixl; then
  echo "setup: fetching $nixl_wheel into .venv"
  if ! make_venv || ! fetch build/setup-nixl.log --no-deps "$nixl_wheel"; then
    tail -n 5 build/setup-nixl.log >&2 || true
    echo "setup: NIXL's wheel could not be fetched; the tests with it say so and are skipped" >&2
  fi
fi

# mpi4py's wheel does not contain its tests; the source distribution of the same version does (0.5 MB).
suite=.venv/mpi4py-suite
mpi4py_version() { compgen -G '.venv/lib/python3*/site-packages/mpi4py-*.dist-info' | sed 's/.*mpi4py-//; s/\.dist-info//'; }
has_suite() { [ "$(cat "$suite/version" 2>/dev/null)" = "$(mpi4py_version)" ]; }
fetch_suite() {
  local version
  version=$(mpi4py_version)
  rm -rf "$suite" && mkdir "$suite" &&
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-binary mpi4py --dest "$suite" \
      "mpi4py==$version" >build/setup-suite.log 2>&1 &&
    tar -xzf "$suite/mpi4py-$version.tar.gz" -C "$suite" --strip-components 1 "mpi4py-$version/test" &&
    rm "$suite/mpi4py-$version.tar.gz" && echo "$version" >"$suite/version"
}
if [ "$tests" = yes ] && [ -n "$(mpi4py_version)" ] && ! has_suite; then
  echo "setup: fetching mpi4py's own tests into .venv"
  if ! fetch_suite; then
    tail -n 5 build/setup-suite.log >&2 || true
    echo "setup: mpi4py's own tests could not be fetched; the tests with them say so and are skipped" >&2
  fi
fi

# A test compiles the device header with NVRTC, which this machine's toolkit contains and PyPI's compiler does not.
nvrtc_wheel=nvidia-cuda-nvrtc==13.0.88
is_nvcc_from_pypi() { [ "$want_nvcc" = yes ] || [[ $(find_nvcc) == .venv/* ]]; }
has_nvrtc() { compgen -G '.venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13' >/dev/null; }
if [ "$tests" = yes ] && is_nvcc_from_pypi && ! has_nvrtc; then
  echo "setup: fetching $nvrtc_wheel into .venv (some 200 MB on disk)"
  if make_venv && fetch build/setup-nvrtc.log "$nvrtc_wheel"; then
    installed_something
  else
    echo "setup: NVRTC's wheel could not be fetched; the test with it says so and is skipped" >&2
  fi
fi

[ "$want_nvcc" = yes ] || exit 0
# Kernels compiled by 13.0 run on every driver of the 580 series and later. Its packages depend on each other without versions, so all
# are pinned.
cuda_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96)

give_up() {  # not fatal: everything but GPU kernels works without the compiler
  mkdir -p .venv
  echo "$1" >.venv/nvcc-failed
  echo "setup: no CUDA compiler: $1"
  echo "setup: going on without; the build says which features are off. To try again: rm .venv/nvcc-failed"
  exit 0
}

echo "setup: no nvcc found: fetching the CUDA 13.0 compiler into .venv (some 280 MB on disk; PEERLANE_NO_NVCC=1 skips this)"
make_venv || give_up "python3 -m venv failed (build/setup-venv.log)"
fetch build/setup-nvcc.log "${cuda_packages[@]}" ||
  give_up "pip install failed: $(grep -m1 ERROR build/setup-nvcc.log || echo see build/setup-nvcc.log)"
nvcc=$(find_nvcc) || give_up "the packages hold no nvcc where it is expected"

# The wheels have lib/; the compiler's link step searches lib64/ for the unversioned name.
toolkit=$(cd "$(dirname "$nvcc")/.." && pwd)
ln -sfn lib "$toolkit/lib64"
[ -e "$toolkit/lib/libcudart.so" ] || ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"

# A compiler that starts may still not work, so compile what the build will compile.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
printf 'extern "C" __global__ void probe(unsigned* word) { atomicAdd_system(word, 1u); }\n' >"$probe/probe.cu"
if ! { "$nvcc" -cubin -arch=sm_90 -o "$probe/probe.cubin" "$probe/probe.cu" && "$nvcc" -ptx -arch=compute_80 -o "$probe/probe.ptx" "$probe/probe.cu"; } \
  >>build/setup-nvcc.log 2>&1; then
  give_up "the installed nvcc cannot compile a kernel (build/setup-nvcc.log)"
fi
installed_something
echo "setup: CUDA compiler ready ($("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'))"
