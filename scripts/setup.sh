#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages that the build needs: as root by apt, otherwise it names the exact command and stops.
# Quiet and instant when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

required=(g++ cmake ninja-build pkg-config libgtest-dev libhwloc-dev nlohmann-json3-dev libcli11-dev python3)
missing=()
for package in "${required[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
# A tool that is on PATH from elsewhere (PyPI, a module system) is as good as the package.
kept=()
for package in "${missing[@]}"; do
  case "$package" in
    g++) command -v g++ >/dev/null && continue ;;
    cmake) command -v cmake >/dev/null && continue ;;
    ninja-build) command -v ninja >/dev/null && continue ;;
    pkg-config) command -v pkg-config >/dev/null && continue ;;
    python3) command -v python3 >/dev/null && continue ;;
  esac
  kept+=("$package")
done
[ ${#kept[@]} -eq 0 ] && exit 0

command="apt-get update && apt-get install -y --no-install-recommends ${kept[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing packages: ${kept[*]}" >&2
  echo "setup: as root, run: $command" >&2
  exit 1
fi
echo "setup: installing ${kept[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${kept[@]}" >/dev/null
