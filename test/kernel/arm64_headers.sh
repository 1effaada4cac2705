#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# arm64_headers.sh FOLDER: fetches and unpacks Debian's arm64 headers of the kernel whose amd64 headers are installed here, so
# that the driver can be cross-compiled for it: FOLDER/current then leads to their tree. Their programs are this machine's own
# (linux-kbuild). apt looks at arm64 with lists of its own: the machine stays one of a single architecture. About 15 MiB.
set -euo pipefail
folder=${1:?usage: arm64_headers.sh FOLDER}
release=$(dpkg-query -W -f='${Depends}' linux-headers-amd64 2>/dev/null | sed -n 's/^linux-headers-\([^ ]*\)-amd64.*/\1/p')
if [ -z "$release" ]; then
  echo "arm64 headers: linux-headers-amd64 is not installed (apt-get install --no-install-recommends linux-headers-amd64)" >&2
  exit 1
fi
package=linux-headers-$release-arm64
if [ ! -e "$folder/$package/complete" ]; then
  rm -rf "${folder:?}/$package"
  mkdir -p "$folder/$package/apt/lists/partial" "$folder/$package/apt/archives/partial"
  cd "$folder/$package"
  options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::lists=$PWD/apt/lists"
    -o "Dir::Cache=$PWD/apt" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" download "$package"
  dpkg -x "$package"_*.deb .
  mkdir -p usr/lib
  ln -sfn /usr/lib/linux-kbuild-* usr/lib/  # what its scripts/ leads to
  rm -rf apt
  touch complete
  cd - >/dev/null
fi
ln -sfn "$package/usr/src/$package" "$folder/current"
echo "arm64 headers: $(readlink -f "$folder/current")"
