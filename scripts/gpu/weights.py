#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how fastsafetensors loads weights to the GPU, with its own copier and with Peerlane's, from the page cache or tmpfs. Every byte is
compared.

    python3 weights.py --folder /dev/shm --json weights.json      needs PyTorch with a GPU, fastsafetensors and Peerlane's package
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time

import torch
from fastsafetensors import SafeTensorsFileLoader
from fastsafetensors import __version__ as fastsafetensors_version
from peerlane.integrations.fastsafetensors import PeerlaneFileLoader

TENSORS = 32  # in each file


def write_file(path, size_bytes, seed):
    """Writes a file of weights, and returns them as bytes on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    data = torch.randint(-(2**62), 2**62, (size_bytes // 8,), dtype=torch.int64, device="cuda", generator=generator).view(torch.uint8)
    each = size_bytes // TENSORS
    header = {f"file{seed}.{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]} for i in range(TENSORS)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(memoryview(data.cpu().numpy()))
    return data


def load(make, paths, wanted=None):
    """Seconds from the call until all bytes are in GPU memory, without the time to make the loader. `wanted`: (number, bytes) of the files."""
    loader = make()
    loader.add_filenames({0: paths})
    torch.cuda.synchronize()
    begin = time.perf_counter()
    buffers = loader.copy_files_to_device()
    torch.cuda.synchronize()
    taken = time.perf_counter() - begin
    for number, data in wanted or ():
        each = len(data) // TENSORS
        for i in range(TENSORS):
            if not torch.equal(buffers.get_tensor(f"file{number}.{i}"), data[i * each : (i + 1) * each]):
                raise SystemExit(f"WRONG bytes in tensor {i} of {paths}")
    buffers.close()
    loader.close()
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--gib", type=int, default=1, help="of each file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(dir=options.folder)
    contenders = {"fastsafetensors nogds": lambda: SafeTensorsFileLoader(None, "cuda:0", nogds=True)}
    for threads in (4, 8, 16):
        contenders[f"peerlane, {threads} threads"] = lambda threads=threads: PeerlaneFileLoader(None, "cuda:0", max_threads=threads)
    rows = []
    try:
        paths = [os.path.join(folder, f"{i}.safetensors") for i in range(options.files)]
        data = [write_file(path, options.gib << 30, seed) for seed, path in enumerate(paths)]
        for name, make in contenders.items():
            load(make, paths, list(enumerate(data)))
            seconds = statistics.median(load(make, paths) for _ in range(options.rounds))
            rows.append({"kind": "weights", "contender": name, "size_bytes": options.files * options.gib << 30, "files": options.files,
                         "seconds": seconds, "bandwidth_gb_per_s": (options.files * options.gib << 30) / seconds / 1e9, "bytes_right": True})
            print(f"{name:24} {rows[-1]['bandwidth_gb_per_s']:6.2f} GB/s", flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump({"schema": "peerlane-result/1", "tool": "weights", "command_line": sys.argv, "simulated": False, "passed": True,
                               "machine": {"gpu": torch.cuda.get_device_name()}, "units": {}, "notes": [], "samples": [],
                               "parameters": {"torch": torch.__version__, "fastsafetensors": fastsafetensors_version}, "rows": rows}, file, indent=1)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
