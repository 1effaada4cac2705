#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/docs.sh [OUT_FOLDER]: the documentation as pages (scripts/site/build.py). Where the Markdown reader is missing it is fetched
# from PyPI once, into .venv; later runs need no network.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/site}
for candidate in python3 .venv/bin/python; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import markdown_it' 2>/dev/null; then
    exec "$candidate" -B scripts/site/build.py "$out"
  fi
done
echo "docs: fetching markdown-it-py and Pygments into .venv"
[ -e .venv ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input 'markdown-it-py>=3,<5' 'Pygments>=2.15'
exec .venv/bin/python -B scripts/site/build.py "$out"
