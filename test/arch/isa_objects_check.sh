#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The objects that are compiled for one instruction set may define only their routines. An inline function of a header in
# one of them would be a weak symbol: the linker keeps any one copy for the whole program, perhaps the AVX-512 one, which
# faults on another CPU.
#     isa_objects_check.sh <nm> <libpl_arch.a>
set -eu
nm=$1
archive=$2
symbols=$("$nm" --demangle --defined-only --extern-only --print-file-name "$archive" |
  grep -E 'copy_(sse2|sse41|avx2|avx512|movdir64b|neon)\.cpp')
[ -n "$symbols" ] || { echo "no instruction-set objects in $archive"; exit 1; }
foreign=$(echo "$symbols" |
  grep -vE ' T pl::arch::(sse2|sse41|avx2|avx512|movdir64b|neon)::(write|read|fill)(_masked)?\(' || true)
[ -z "$foreign" ] || { echo "symbols that other objects may be linked to:"; echo "$foreign"; exit 1; }
echo "$symbols" | wc -l | xargs echo "routines:"
