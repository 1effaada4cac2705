#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with the distribution's Open MPI (libraries, plug-ins for one machine, mpirun) and mpi4py, about 12 MB, for a GPU machine
# with neither MPI nor a package registry. There, `. DEST/env.sh` makes programs use it. Needs the packages openmpi-bin and libopenmpi3
# (Debian, Ubuntu) on this machine, and pip with a registry for mpi4py.
#   scripts/gpu/pack_mpi.sh DEST
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 DEST" >&2; exit 2; }
command -v orterun >/dev/null || { echo "$0: no Open MPI 4 here (apt-get install openmpi-bin)" >&2; exit 1; }
mpi4py=4.1.2

rm -rf "$1"
mkdir -p "$1"
dest=$(cd "$1" && pwd)
multiarch=$(gcc -print-multiarch)
# Open MPI finds its plug-ins and texts relative to its prefix, which OPAL_PREFIX names.
plugins=lib/$multiarch/openmpi/lib/openmpi3
texts=share/openmpi
mkdir -p "$dest/bin" "$dest/lib/other" "$dest/$plugins" "$dest/$texts" "$dest/python"

cp "$(readlink -f "$(command -v orterun)")" "$dest/bin/mpirun"
cp /usr/$texts/help-*.txt "$dest/$texts"

# Plug-ins for schedulers, networks, files and other interfaces than MPI are left out: they need further libraries.
left_out='ucx|ofi|psm|openib|monitoring|vprotocol|slurm|gridengine|flux|jsm|simulator|crs|pspawn|spml|scoll|memheap|sshmem|atomic'
left_out+='|romio|ompio|fcoll|fbtl|sharedfp|_fs_|rsh'
find "/usr/$plugins" -name 'mca_*.so' | grep -vE "/mca_[a-z_0-9]*($left_out)" | xargs cp -t "$dest/$plugins"

# All libraries that are needed. Those of Open MPI, and those that probably nothing else uses, go to lib. lib/other gets libraries that
# most machines have in the versions that their other programs need. The C library is always the machine's.
libraries() { ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u; }
for library in $(libraries "$dest"/bin/* "$dest/$plugins"/*.so) "/usr/lib/$multiarch/libmpi.so.40"; do
  case $(basename "$library") in
    libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libutil.so* | libgcc_s.so* | libstdc++.so*) ;;
    libmpi* | libopen-* | libmca_* | libpmix* | libhwloc* | libevent* | libmunge*) cp -L "$library" "$dest/lib" ;;
    *) cp -L "$library" "$dest/lib/other" ;;
  esac
done

# One wheel for Python 3.10 and later, without its module for MPICH.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.13 --abi abi3 \
  --dest "$work" "mpi4py==$mpi4py"
python3 -m zipfile -e "$work"/mpi4py-*.whl "$dest/python"
rm -f "$dest"/python/mpi4py/MPI.mpich.*

cat >"$dest/env.sh" <<'ENV'
# Source this file: the Open MPI and mpi4py of this folder then come first.
pl_mpi=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OPAL_PREFIX=$pl_mpi PATH=$pl_mpi/bin:$PATH LD_LIBRARY_PATH=$pl_mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$pl_mpi/python${PYTHONPATH:+:$PYTHONPATH} MPI4PY_MPIABI=openmpi MPI4PY_LIBMPI=$pl_mpi/lib/libmpi.so.40
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# All processes are on this machine: start, look for and listen to no other.
export PMIX_MCA_pcompress_base_silence_warning=1 PMIX_MCA_mca_base_component_show_load_errors=0 OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_oob_tcp_if_include=lo
# Of the libraries in lib/other, use only those that this machine lacks.
pl_lacking=$(ldd "$pl_mpi/bin/mpirun" "$pl_mpi"/lib/*.so* "$pl_mpi"/lib/*/openmpi/lib/openmpi3/*.so | awk '/not found/ { print $1 }' | sort -u)
for pl_name in $pl_lacking; do
  mkdir -p "$pl_mpi/lib/used" && cp "$pl_mpi/lib/other/$pl_name" "$pl_mpi/lib/used"
done
[ ! -d "$pl_mpi/lib/used" ] || export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$pl_mpi/lib/used
unset pl_mpi pl_lacking pl_name
ENV
du -sh "$dest"
