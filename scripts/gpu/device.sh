#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures transfers that kernels start, on a real GPU: latency by size and scope, order, ten million checked signals, rate, bandwidth,
# random puts with every byte checked, the cost of idle rings for other copies, errors, a matrix multiplication beside puts (cuBLAS of the
# machine's PyTorch), and memory of another process, which is killed during a transfer.
# It builds nothing (bench/device_put_bench, device_neighbor_bench: -DPEERLANE_BENCH=ON).
#   scripts/gpu/device.sh <folder of the two> <results folder>
set -u
# shellcheck source-path=SCRIPTDIR source=steps.sh
. "$(dirname "$0")/steps.sh"
arguments "bench=folder of device_put_bench and device_neighbor_bench" results -- "$@"
cp "$bench"/device_{put,neighbor}_bench /tmp/ && chmod 755 /tmp/device_{put,neighbor}_bench
cublas=$(python3 - <<'PYTHON'
import glob, site, sys

found = [path for folder in sys.path + site.getsitepackages() + [site.getusersitepackages(), "/usr/local/cuda/lib64"]
         for pattern in ("nvidia/*/lib/libcublas.so.1?", "libcublas.so.1?") for path in sorted(glob.glob(f"{folder}/{pattern}"))]
print(found[0] if found else "")
PYTHON
)
LD_LIBRARY_PATH=$(dirname "${cublas:-.}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

# One step for each section, so that a hang in one does not stop the others.
for section in latency order signals rate bandwidth random company gemm errors; do
  LIMIT=90 TAIL=90 step "$section" /tmp/device_put_bench "$results/$section.json" "$section" "cublas=$cublas"
done
LIMIT=60 TAIL=6 step errors_nobody "${nobody[@]}" /tmp/device_put_bench /tmp/nobody_device.json errors
LIMIT=60 TAIL=20 step neighbor /tmp/device_neighbor_bench "$results/neighbor.json"
LIMIT=60 TAIL=20 step neighbor_nobody "${nobody[@]}" /tmp/device_neighbor_bench /tmp/nobody_neighbor.json
tidy_results "$results"
printf '%s\n' "${summary[@]}"
exit "$failed"
