#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures the Python package on a GPU, from a wheel and without a network: scripts/gpu/python.sh [WHEEL] [FOLDER].
# WHEEL: made by scripts/wheels.sh (default: the one for Python 3.12 and later in build/). FOLDER: gets python_cost.json and python.txt
# (default: $OUT, else build/). Prints what was checked with the installed PyTorch, CuPy and JAX, the cost of elements and copies, and the
# effect that each example measures. Exit code 0: everything passed.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheel=${1:-$(find build -maxdepth 1 -name 'peerlane-*-abi3-*.whl' | sort | tail -1)}
results=${2:-${OUT:-build}}
[ -f "$wheel" ] || { echo "python.sh: no wheel: scripts/wheels.sh makes one (Python 3.12 or newer makes that for all)" >&2; exit 2; }
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

# A wheel is a zip file. A bare machine may lack pip and virtual environments.
"$python" -m zipfile -e "$wheel" "$site"
chmod +x "$site/peerlane/native/peerlane"
export PYTHONPATH=$site XLA_PYTHON_CLIENT_PREALLOCATE=false
failed=0
step() {
  echo "== $1"
  shift
  timeout 200 "$@" || { echo "== FAILED ($?)"; failed=1; }
}
mkdir -p "$results"
{
  step "quick start" "$python" -c "$(sed -n '/^```python$/,/^```$/p' docs/python.md | sed '1d;/^```$/,$d')"
  step "real tensors" "$python" scripts/gpu/python_check.py
  step "costs" "$python" scripts/gpu/python_cost.py --json "$results/python_cost.json"
  for example in flag_updates inference_input parameter_server halo_exchange; do
    step "example $example" "$python" "examples/python/$example.py"
  done
  echo "== $([ $failed = 0 ] && echo "all passed" || echo "SOMETHING FAILED")"
  exit $failed
} 2>&1 | tee "$results/python.txt"
