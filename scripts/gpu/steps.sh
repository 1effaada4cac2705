#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Functions for the scripts beside it, which source this file: their arguments, steps that run one after the other with their output in a
# file each, and a summary at the end.
# Needs `results` (a folder; `arguments` sets it). Sets `failed` (the script's exit status) to 1 if a step fails. TAIL: number of lines of
# a step's output to show. LIMIT: seconds after which a step is ended, so that a hang does not use up the time on a borrowed machine.

export PEERLANE_GPU=${PEERLANE_GPU:-real}
# shellcheck disable=SC2034 # here and below: used by the scripts that source this one
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
summary=()
export failed=0

# The variables that `arguments` can set, as absolute paths.
# shellcheck disable=SC2034
out='' results='' triton='' abi='' bench='' old='' faults='' mpi='' ucx='' wheel='' backend=''

# Sets the script's arguments as variables: `out` (the folder that the build made), `results` (a folder, created if it does not exist), and
# NAME=DESCRIPTION for others (?NAME=DESCRIPTION: optional; NAME is then empty). If they do not fit, prints the usage and exits.
arguments() { # name..., --, "$@"
  local names=() usage=$0 least=0 one name path
  for one; do
    shift
    [ "$one" != -- ] || break
    case $one in
      out) one="out=out folder of the build" ;;
      results) one="results=results folder" ;;
    esac
    names+=("$one")
    if [ "${one#\?}" = "$one" ]; then
      usage+=" <${one#*=}>" least=$((least + 1))
    else
      usage+=" [${one#*=}]"
    fi
  done
  if [ $# -lt $least ] || [ $# -gt ${#names[@]} ]; then
    echo "usage: $usage" >&2
    exit 2
  fi
  for one in "${names[@]}"; do
    [ $# -gt 0 ] || break
    name=${one%%=*} name=${name#\?}
    [ "$name" != results ] || mkdir -p "$1"
    path=$1
    [ ! -e "$path" ] || path=$(realpath "$path")
    [ "$name" = backend ] || [ -e "$path" ] || { echo "$0: $1: there is no such file or folder" >&2; exit 2; }
    printf -v "$name" %s "$path"
    shift
  done
}

# Makes our programs use the UCX in the folder `ucx`.
use_ucx() {
  export UCX_MODULE_DIR=$ucx/ucx PEERLANE_UCX_LIBRARY=$ucx/libucp.so.0 LD_LIBRARY_PATH=$ucx:${LD_LIBRARY_PATH:-} UCX_WARN_UNUSED_ENV_VARS=n
}

# A prefix that runs a command as an unprivileged user. It is a list of words and not a function, so that LIMIT applies to it.
# shellcheck disable=SC2034 # used by the scripts that source this one
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp TMPDIR=/tmp)

step() { # name, command...
  local name=$1 start end rc limit=()
  shift
  echo "=== $name"
  # `timeout` starts programs only, so a step that is a shell function runs without it.
  [ "$(type -t "$1")" = function ] || limit=(timeout -k 5 "${LIMIT:-300}")
  start=$(date +%s%N)
  "${limit[@]}" "$@" >"$results/$name.txt" 2>&1
  rc=$?
  end=$(date +%s%N)
  tail -n "${TAIL:-20}" "$results/$name.txt"
  summary+=("$(printf '%-34s rc %d  %7d ms' "$name" "$rc" $(((end - start) / 1000000)))")
  [ $rc -eq "${EXPECT_RC:-0}" ] || failed=1
}

# Runs the multi-node testcases as several processes of this machine, without MPI. Needs `program`; all get the options.
multinode_ranks() { # count, options of bandwidth...
  local count=$1 rank rc common
  shift
  common=(timeout -k 5 100 "$program" bandwidth --nodes "$count" --rendezvous 127.0.0.1:29511 -p multinode "$@")
  for ((rank = 1; rank < count; ++rank)); do "${common[@]}" --rank "$rank" & done
  "${common[@]}" --rank 0 --json "$results/multinode.json"
  rc=$?
  wait
  return $rc
}

# Sets PEERLANE_NCCL_LIBRARY, unless it is set, to the NCCL of this machine's Python packages (PyTorch's); empty if there is none.
find_nccl() {
  PEERLANE_NCCL_LIBRARY=${PEERLANE_NCCL_LIBRARY:-$(python3 - <<'PYTHON'
import glob, os, site, sys

folders = sys.path + site.getsitepackages() + [site.getusersitepackages()]
found = [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2")))]
print(found[0] if found else "")
PYTHON
)}
  # Two processes of one machine need no network, and NVLink multicast is not measured.
  export PEERLANE_NCCL_LIBRARY NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
}

# Results are committed, so this removes the machine's folders from them, and puts each row on its own line.
tidy_results() { # folder
  python3 - "$1" <<'PYTHON'
import glob, json, os, sys

def bare(value):
    if isinstance(value, str) and value.startswith("/"):
        return os.path.basename(value)
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items()}
    return [bare(one) for one in value] if isinstance(value, list) else value

for path in glob.glob(os.path.join(sys.argv[1], "*.json")):
    with open(path, encoding="utf-8") as file:
        try:
            result = json.load(file)
        except ValueError:
            continue
    if not isinstance(result, dict) or "schema" not in result:
        continue
    result["command_line"] = bare(result.get("command_line", []))
    result["parameters"] = bare(result.get("parameters", {}))
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
PYTHON
}
