#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and lacks: Debian/Ubuntu packages as root (otherwise it names the exact command and
# stops), and, where no CUDA compiler is found, one from PyPI in the private Python environment .venv. Quiet, and quick,
# when nothing is missing. Works on Debian 12 and Ubuntu 24.04.
# Environment: PEERLANE_NO_NVCC=1 leaves the CUDA compiler alone.
set -euo pipefail
cd "$(dirname "$0")/.."

# ---- Debian packages -------------------------------------------------------------------------------------------------
required=(g++ cmake ninja-build pkg-config libgtest-dev libhwloc-dev nlohmann-json3-dev libcli11-dev python3)

# The CUDA compiler of this machine, if there is one; cmake looks in the same places, in this order.
find_nvcc() {
  local candidate
  for candidate in "${CMAKE_CUDA_COMPILER:-}" "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    .venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then echo "$candidate" && return 0; fi
  done
  return 1
}

want_nvcc=no
venv_package=()
if [ "${PEERLANE_NO_NVCC:-0}" != 1 ] && [ ! -e .venv/nvcc-failed ] && ! find_nvcc >/dev/null; then
  want_nvcc=yes
  # Debian splits these modules off Python; a Python from elsewhere has them.
  python3 -c 'import ensurepip, venv' 2>/dev/null || venv_package=(python3-venv)
fi

installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' && return 0
  # A tool that is on PATH from elsewhere (PyPI, a module system, another distribution) is as good as the package.
  case "$1" in
    g++ | cmake | pkg-config | python3) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    *) return 1 ;;
  esac
}

missing=()
for package in "${required[@]}"; do
  installed "$package" || missing+=("$package")
done

as_root=no
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && as_root=yes
if [ "$as_root" = yes ]; then
  wanted=("${missing[@]}" "${venv_package[@]}")
else
  wanted=("${missing[@]}")
fi
command_for() { echo "apt-get update && apt-get install -y --no-install-recommends $*"; }

if [ ${#wanted[@]} -gt 0 ]; then
  if [ "$as_root" = no ]; then
    echo "setup: missing packages: ${missing[*]}" >&2
    echo "setup: as root, run: $(command_for "${missing[@]}" "${venv_package[@]}")" >&2
    exit 1
  fi
  echo "setup: installing ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed; this is what was tried: $(command_for "${wanted[@]}")" >&2
    exit 1
  fi
fi

# ---- What only some parts and tests need -------------------------------------------------------------------------------
# In CI nothing is left out for want of a package; elsewhere those tests are skipped and say which package they miss, and
# without UCX's headers the build leaves messages (src/link) out, without RocksDB and liburing the store, without MPI's headers
# the shim and ranks that mpirun starts on several hosts, and says so.
if [ "${CI:-}" = true ] && [ "$as_root" = yes ]; then
  extra=()
  python3 -c 'import ensurepip, venv' 2>/dev/null || extra+=(python3-venv)
  for package in g++-aarch64-linux-gnu qemu-user clang-format libopenmpi-dev openmpi-bin libmpich-dev mpich libucx-dev \
    libucx0 librocksdb-dev liburing-dev libasio-dev libssl-dev libibverbs-dev \
    chromium fonts-dejavu-core python3-dev dpkg-dev lintian rpm rpmlint; do
    installed "$package" || extra+=("$package")
  done
  if [ ${#extra[@]} -gt 0 ]; then
    echo "setup: installing ${extra[*]} (for optional parts and tests)"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${extra[@]}"; } >/dev/null 2>&1 ||
      echo "setup: could not be installed: ${extra[*]}; what needs them is left out"
  fi
  # For the kernel driver's tests in emulated machines (test/kernel): QEMU, and two kernels with their headers, by the names of
  # Debian 12; and what gives such a machine soft-RoCE. INITRD=No: the tests make their own initramfs; making the usual ones takes minutes.
  guests=()
  for package in qemu-system-x86 busybox-static zstd linux-image-amd64 linux-headers-amd64 linux-headers-6.12-amd64 sparse \
    iproute2 ibverbs-providers; do
    installed "$package" || guests+=("$package")
  done
  if [ ${#guests[@]} -gt 0 ] && [ "$(dpkg --print-architecture)" = amd64 ]; then
    echo "setup: installing ${guests[*]} (for tests of the kernel driver)"
    { apt-get update -qq && INITRD=No apt-get install -y -qq --no-install-recommends "${guests[@]}"; } >/dev/null 2>&1 ||
      echo "setup: could not be installed: ${guests[*]}; the tests that need them are skipped"
  fi
  # To compile the driver for arm64 as well: headers of another architecture, which are unpacked and not installed.
  if [ "$(dpkg --print-architecture)" = amd64 ] && [ ! -e build/arm64-headers/current ]; then
    echo "setup: fetching arm64 kernel headers into build/arm64-headers (for a test)"
    test/kernel/arm64_headers.sh build/arm64-headers >/dev/null 2>&1 ||
      echo "setup: arm64 kernel headers could not be fetched; the test that needs them is skipped"
  fi
  # For tests of clusters of stores, which start an etcd of their own: the package's service is not wanted.
  if ! installed etcd-server; then
    echo "setup: installing etcd-server (for tests of clusters of stores)"
    if { apt-get update -qq && apt-get install -y -qq --no-install-recommends etcd-server iproute2; } >/dev/null 2>&1; then
      systemctl disable --now etcd >/dev/null 2>&1 || true
    else
      echo "setup: etcd-server could not be installed; the tests that need it are skipped"
    fi
  fi
  # into_venv MODULES WORDS REGRET PACKAGE...: from PyPI into .venv, unless these modules are there.
  into_venv() {
    local modules=$1 words=$2 regret=$3
    shift 3
    if .venv/bin/python -c "import $modules" 2>/dev/null; then return 0; fi
    echo "setup: installing $words"
    { python3 -m venv .venv && .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"; } >/dev/null 2>&1 ||
      echo "setup: $regret"
  }
  into_venv mpi4py 'mpi4py into .venv (for tests)' 'mpi4py could not be installed; the test that needs it is skipped' mpi4py
  # What the Python package is built and tested with; without, the build leaves it out and says so.
  into_venv 'nanobind, numpy, pytest, scikit_build_core, mypy' \
    'nanobind, numpy, pytest, scikit-build-core and mypy into .venv (for the Python package)' \
    'they could not be installed; the Python package and its test are left out' \
    'nanobind>=2.2' numpy pytest 'scikit-build-core>=0.10' 'mypy>=1.11'
  # What the report's page, `peerlane top` and the documentation are made with: their tests are skipped without. Small, and no network later.
  into_venv 'plotly, rich' 'plotly and rich into .venv (for the report, the terminal view and the documentation)' \
    'plotly and rich could not be installed; the tests that need them are skipped' 'plotly>=6,<8' 'rich>=13'
fi

# ---- CUDA compiler ---------------------------------------------------------------------------------------------------
[ "$want_nvcc" = yes ] || exit 0
# Kernels compiled by 13.0 run on every driver of the 580 series and later. Its parts name each other without a version,
# so all of them are pinned.
cuda_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96)

give_up() {  # not fatal: everything but GPU kernels works without the compiler
  mkdir -p .venv
  echo "$1" >.venv/nvcc-failed
  echo "setup: no CUDA compiler: $1"
  echo "setup: going on without; the build says which features are off. To try again: rm -r .venv"
  exit 0
}

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  echo "setup: no CUDA compiler: installing one needs python3-venv. As root, run: $(command_for python3-venv)"
  echo "setup: going on without; the build says which features are off"
  exit 0
fi
echo "setup: no nvcc found: fetching the CUDA 13.0 compiler into .venv (some 280 MB on disk; PEERLANE_NO_NVCC=1 skips this)"
mkdir -p build
# Half an environment would look like a whole one to the next run.
[ -e .venv ] || trap 'rm -rf .venv; exit 130' INT TERM
python3 -m venv .venv >build/setup-nvcc.log 2>&1 || give_up "python3 -m venv failed (build/setup-nvcc.log)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "${cuda_packages[@]}" \
  >>build/setup-nvcc.log 2>&1 || give_up "pip install failed: $(grep -m1 ERROR build/setup-nvcc.log || echo see build/setup-nvcc.log)"
nvcc=$(find_nvcc) || give_up "the packages hold no nvcc where it is expected"

# The wheels are laid out as lib/, the compiler's link step looks in lib64/ and for the unversioned name.
toolkit=$(cd "$(dirname "$nvcc")/.." && pwd)
ln -sfn lib "$toolkit/lib64"
[ -e "$toolkit/lib/libcudart.so" ] || ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"

# A compiler that starts is not yet one that works: make what the build will make.
probe=$(mktemp -d)
printf 'extern "C" __global__ void probe(unsigned* word) { atomicAdd_system(word, 1u); }\n' >"$probe/probe.cu"
if ! { "$nvcc" -cubin -arch=sm_90 -o "$probe/probe.cubin" "$probe/probe.cu" && "$nvcc" -ptx -arch=compute_80 -o "$probe/probe.ptx" "$probe/probe.cu"; } \
  >>build/setup-nvcc.log 2>&1; then
  rm -rf "$probe"
  give_up "the installed nvcc cannot compile a kernel (build/setup-nvcc.log)"
fi
rm -rf "$probe"
trap - INT TERM
echo "setup: CUDA compiler ready ($("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'))"
