#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites unsupported.def and aliases.ld from the toolkit's stub library and from what sim/*.cpp implements.

Usage: sim/update_symbols.py [path of the stub libcuda.so]
Run it after implementing a call, or with a newer toolkit. Only names are taken from the library.
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STUB = sys.argv[1] if len(sys.argv) > 1 else "/usr/local/cuda/lib64/stubs/libcuda.so"

# Older names with the same parameters as the newer symbol.
SAME_AS_V2 = """cuCtxCreate cuCtxDestroy cuCtxPopCurrent cuCtxPushCurrent cuDeviceGetUuid cuDevicePrimaryCtxRelease
cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags cuEventDestroy cuIpcOpenMemHandle cuMemHostRegister
cuStreamDestroy cuStreamWaitValue32 cuStreamWaitValue64""".split()
OTHER = {"cuEventElapsedTime_v2": "cuEventElapsedTime", "cuMemcpy2DUnaligned_v2": "cuMemcpy2D_v2"}

names = sorted(
    line.split()[-1]
    for line in subprocess.run(["nm", "-D", "--defined-only", STUB], capture_output=True, text=True, check=True).stdout.splitlines()
    if line.split()[-1].startswith("cu")
)
done = set()
for source in HERE.glob("*.cpp"):
    done |= set(re.findall(r"PL_SIM_API (cu\w+)\(", source.read_text()))

aliases = {name: name + "_v2" for name in SAME_AS_V2} | OTHER
for name in names:
    base = re.sub(r"_ptsz$|_ptds$", "", name)
    if base != name and (base in done or base in aliases):
        aliases[name] = aliases.get(base, base)
aliases = {name: target for name, target in aliases.items() if name not in done and target in done}

unsupported = [name for name in names if name not in done and name not in aliases]
(HERE / "unsupported.def").write_text(
    "// Driver symbols that the simulated GPU refuses. Made by update_symbols.py; do not edit.\n"
    + "".join(f"PL_UNSUPPORTED({name})\n" for name in unsupported)
)
(HERE / "aliases.ld").write_text(
    "/* Further names of the same calls: older names with the same parameters, and the per-thread default stream's,\n"
    "   which is the legacy stream here. Made by update_symbols.py; do not edit. */\n"
    + "".join(f"{name} = {target};\n" for name, target in sorted(aliases.items()))
)
print(f"{len(done)} implemented, {len(aliases)} aliases, {len(unsupported)} unsupported")
