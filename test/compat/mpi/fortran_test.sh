#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles fortran_program.F90 with each interface of an MPI, and runs it: fortran_test.sh <mpif90> <source> <folder for the
# programs> <folder of libcuda.so> <mpirun and its options...>
set -eu
compiler=$1 source=$2 folder=$3 sim=$4
shift 4
command -v "$compiler" > /dev/null && command -v gfortran > /dev/null || { echo "SKIPPED: no $compiler, or no gfortran"; exit 0; }
mkdir -p "$folder"
for interface in PL_USE_MPI_F08 PL_USE_MPI PL_USE_MPIF; do
  program=$folder/$interface
  "$compiler" -D"$interface" -J"$folder" "$source" -o "$program" -L"$sim" -lcuda
  echo "$interface"
  "$@" "$program"
done
