#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# public_headers.sh INCLUDE_DIR CC CXX: each public header compiles alone, without a warning, in every language that may
# include it: .h in C99, C11 and C++11 (what the oldest clients use) and C++20, .hpp in C++20.
set -euo pipefail
include=$1 cc=$2 cxx=$3
warnings=(-Wall -Wextra -Werror -pedantic -fsyntax-only -I "$include")
failed=0 count=0

check() {  # LANGUAGE STANDARD COMPILER HEADER
  count=$((count + 1))
  # Included twice: a header without a guard fails too.
  if ! printf '#include <%s>\n#include <%s>\nextern int not_empty;\n' "$4" "$4" | "$3" -x "$1" "-std=$2" "${warnings[@]}" -; then
    echo "FAILED: <$4> alone as $2 with $3"
    failed=1
  fi
}

while read -r header; do
  case "$header" in
    *.h)
      for standard in c99 c11; do check c "$standard" "$cc" "$header"; done
      for standard in c++11 c++20; do check c++ "$standard" "$cxx" "$header"; done ;;
    *.hpp) check c++ c++20 "$cxx" "$header" ;;
  esac
done < <(cd "$include" && find . -name '*.h' -o -name '*.hpp' | sed 's|^\./||' | sort)

[ "$count" -gt 0 ] || { echo "FAILED: no header found in $include"; exit 1; }
echo "$count compilations"
exit "$failed"
