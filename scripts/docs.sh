#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/docs.sh [OUT_FOLDER]: builds the documentation as a site with mkdocs (mkdocs.yml). The first run fetches mkdocs into
# build/docs-venv; later runs need no network. A link that leads nowhere fails the build.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/docs-venv
if [ ! -e "$venv/ready" ] || [ scripts/docs-requirements.txt -nt "$venv/ready" ]; then
  echo "docs: fetching mkdocs into $venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r scripts/docs-requirements.txt
  touch "$venv/ready"
fi
# (--quiet would hide the warnings from --strict)
export NO_MKDOCS_2_WARNING=1
exec "$venv/bin/mkdocs" build --strict --site-dir "${1:-$PWD/build/site}"
