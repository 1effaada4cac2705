#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the project's rules (lint.py), then clang-tidy. clang-tidy takes seconds for each file, so it checks only the files that differ
# from main (on main: those of the last commit, and uncommitted ones). `make lint ALL=1` checks all.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
preset=${PRESET:-release}

failed=0
python3 scripts/lint.py || failed=1

changed_files() {
  local base
  base=$(git merge-base HEAD main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse --verify --quiet 'HEAD~1' || git hash-object -t tree /dev/null)
  fi
  git diff --name-only --diff-filter=d "$base"
  git ls-files --others --exclude-standard
}

if ! command -v clang-tidy >/dev/null; then
  echo "lint: NOT CHECKED: clang-tidy (not installed: apt-get install clang-tidy)"
  exit "$failed"
fi
if [ ! -f "build/$preset/compile_commands.json" ]; then
  scripts/build.sh "$preset" --configure-only
fi
# Only files in the compile database: for others there are no compiler flags.
known=$(python3 - "build/$preset/compile_commands.json" <<'PY'
import json, os, sys
for entry in json.load(open(sys.argv[1])):
    path = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
    if not path.startswith(("build", "..")):
        print(path)
PY
)
if [ -n "${ALL:-}" ]; then
  files=$(sort -u <<<"$known")
else
  files=$(comm -12 <(sort -u <<<"$known") <(changed_files | sort -u))
fi
[ -n "$files" ] || { echo "lint: clang-tidy: no changed source file (ALL=1 checks every one)"; exit "$failed"; }
echo "lint: clang-tidy on $(wc -l <<<"$files") files"
# Clang does not know every warning of GCC; that is not a finding.
xargs -P "$jobs" -n 1 clang-tidy --quiet -p "build/$preset" --extra-arg=-Wno-unknown-warning-option <<<"$files" \
  2> >(grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' >&2) || failed=1
exit "$failed"
