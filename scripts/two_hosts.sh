#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/two_hosts.sh COMMAND...: emulates two hosts on one machine while COMMAND runs: two network namespaces, joined by a pair of veth
# interfaces. COMMAND gets their names in HOST_A and HOST_B, and PEERLANE_LINK_PATH and UCX_TLS, which leave only TCP between them.
# Needs root and the program ip. Example:
#   scripts/two_hosts.sh sh -c 'peerlane async pingpong --netns $HOST_A,$HOST_B --arms normal,proxy'
set -eu
if [ $# -eq 0 ]; then
  sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
export HOST_A=pl-$$-a HOST_B=pl-$$-b PEERLANE_LINK_PATH=network UCX_TLS=tcp
clear_up() {
  ip netns del "$HOST_A" 2>/dev/null || true
  ip netns del "$HOST_B" 2>/dev/null || true
}
trap clear_up EXIT
ip netns add "$HOST_A"
ip netns add "$HOST_B"
ip -n "$HOST_A" link add wire0 type veth peer name wire0 netns "$HOST_B"
ip -n "$HOST_A" addr add 10.77.9.1/24 dev wire0
ip -n "$HOST_B" addr add 10.77.9.2/24 dev wire0
for host in "$HOST_A" "$HOST_B"; do
  ip -n "$host" link set wire0 up
  ip -n "$host" link set lo up
done
# UCX ignores an interface until the kernel reports that its link is up.
for host in "$HOST_A" "$HOST_B"; do
  for _ in $(seq 100); do
    ip -n "$host" link show wire0 | grep -q 'state UP' && break
    sleep 0.02
  done
done
"$@"
