#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures vLLM's Triton kernel for scattered blocks, from its unchanged file, on the lists of `peerlane blocks`. Its rows have the same form, for
the same table and plot.

    python3 blocks_triton.py --json triton.json [--triton-file swap_blocks_triton.py] [--sizes 4K,16K] [--counts 1024,16384]

Needs PyTorch with a GPU, and Triton. The file is --triton-file, or that of the installed vLLM. Times are from the call until the CPU sees the
end, including the copies of the addresses to the GPU, which the file's function makes. Every byte of each list is compared.
"""

import argparse
import importlib.util
import json
import sys
import time
import types

METHOD = "vLLM's Triton kernel"


def number_of(text):
    """4096 of "4K"."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if scale > 1 else text) * scale


def find_file(given):
    """The path of the kernel's file, which is never copied into this project."""
    if given:
        return given
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("vLLM is not installed: name its file vllm/v1/kv_offload/cpu/swap_blocks_triton.py by --triton-file")
    return f"{package.submodule_search_locations[0]}/v1/kv_offload/cpu/swap_blocks_triton.py"


def load(path, triton, language):
    """The file as a module. From vLLM it imports only operations, which lists of fewer than MIN_N blocks call, and the name of Triton."""

    def refuse(*_, **__):
        raise RuntimeError("a list too short for the Triton kernel: vLLM would copy it by the driver")

    stand_ins = {"vllm": types.ModuleType("vllm"), "vllm._custom_ops": types.ModuleType("vllm._custom_ops"),
                 "vllm.triton_utils": types.ModuleType("vllm.triton_utils")}
    stand_ins["vllm._custom_ops"].swap_blocks_batch = refuse
    stand_ins["vllm"]._custom_ops = stand_ins["vllm._custom_ops"]
    vars(stand_ins["vllm.triton_utils"]).update(triton=triton, tl=language, HAS_TRITON=True)
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        described = importlib.util.spec_from_file_location("swap_blocks_triton", path)
        if described is None or described.loader is None:
            raise SystemExit(f"{path}: no Python file")
        module = importlib.util.module_from_spec(described)
        sys.modules["swap_blocks_triton"] = module  # Triton finds the source by it
        described.loader.exec_module(module)
    finally:
        for name, old in before.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old
    return module


class Lists:
    """Memory of both sides, and lists of blocks at random places in it."""

    def __init__(self, torch, size_bytes, seed):
        self.torch, self.random = torch, torch.Generator().manual_seed(seed)
        self.host = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, generator=self.random).pin_memory()
        self.device = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    def make(self, block_bytes, count):
        """Slots of both sides."""
        slots = count + count // 4 + 1
        return [self.torch.randperm(slots, generator=self.random)[:count] for _ in range(2)]

    def addresses(self, memory, slots, block_bytes):
        return memory.data_ptr() + slots * block_bytes

    def is_right(self, to_host, host_slots, device_slots, block_bytes, move):
        """Whether `move` copies every block to its place and does not change the others."""
        torch = self.torch
        slots = len(host_slots) + len(host_slots) // 4 + 1
        host = self.host[: slots * block_bytes].view(slots, block_bytes)
        device = self.device[: slots * block_bytes].view(slots, block_bytes)
        values = torch.randint(0, 255, (slots, block_bytes), dtype=torch.uint8, generator=self.random)
        source, target = (device, host) if to_host else (host, device)
        source_slots, target_slots = (device_slots, host_slots) if to_host else (host_slots, device_slots)
        source.copy_(values)
        target.zero_()
        torch.cuda.synchronize()
        move()
        torch.cuda.synchronize()
        expected = torch.zeros_like(values)
        expected[target_slots] = values[source_slots]
        return torch.equal(target.cpu(), expected)


def measure(torch, module, triton, lists, to_host, block_bytes, count, seconds):
    host_slots, device_slots = lists.make(block_bytes, count)
    sides = [lists.addresses(lists.host, host_slots, block_bytes), lists.addresses(lists.device, device_slots, block_bytes)]
    source, target = (sides[1], sides[0]) if to_host else (sides[0], sides[1])
    sizes = torch.full((count,), block_bytes, dtype=torch.int64)
    chunk = min(triton.next_power_of_2(block_bytes), 8192)  # as vLLM's worker chooses it

    def move():
        module.swap_blocks_batch(source, target, sizes, bytes_per_chunk=chunk)

    verified = lists.is_right(to_host, host_slots, device_slots, block_bytes, move)
    samples, end = [], time.perf_counter() + seconds
    submits = []
    while time.perf_counter() < end or len(samples) < 5:
        begin = time.perf_counter()
        move()
        submits.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - begin)
    samples.sort()
    submits.sort()
    p50, p99 = (samples[min(len(samples) - 1, int(len(samples) * share))] for share in (0.5, 0.99))
    size_bytes = block_bytes * count
    return {"kind": "blocks", "direction": "d2h" if to_host else "h2d", "method": METHOD, "block_bytes": block_bytes, "count": count,
            "size_bytes": size_bytes, "verified": verified, "latency_ns_p50": p50 * 1e9, "latency_ns_p99": p99 * 1e9, "latency_ns_min": samples[0] * 1e9,
            "latency_ns_max": samples[-1] * 1e9, "samples": len(samples), "bandwidth_gb_per_s": size_bytes / p50 / 1e9,
            "bandwidth_p99_gb_per_s": size_bytes / p99 / 1e9, "submit_ns_per_block": submits[len(submits) // 2] * 1e9 / count}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the result file")
    parser.add_argument("--triton-file", help="vLLM's swap_blocks_triton.py; default: that of the vLLM that is installed")
    parser.add_argument("--sizes", default="512,1K,2K,4K,8K,16K")
    parser.add_argument("--counts", default="64,1024,16384,100000")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each list")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        import torch
        import triton
        import triton.language as language
    except ImportError as error:
        raise SystemExit(f"{error}: this needs PyTorch and Triton") from None
    path = find_file(options.triton_file)
    module = load(path, triton, language)
    limit = 1 << 30
    points = [(to_host, size, count) for to_host in (True, False) for size in map(number_of, options.sizes.split(","))
              for count in map(int, options.counts.split(",")) if size * count <= limit]
    lists = Lists(torch, max(size * (count + count // 4 + 1) for _, size, count in points), options.seed)
    rows = []
    for to_host, size, count in points:
        rows.append(measure(torch, module, triton, lists, to_host, size, count, options.seconds))
        row = rows[-1]
        print(f"{row['direction']} {count:6} x {size:5}: {row['bandwidth_gb_per_s']:6.2f} GB/s  {'right' if row['verified'] else 'WRONG'}", flush=True)
    passed = all(row["verified"] for row in rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": "peerlane-result/1", "tool": "blocks", "command_line": sys.argv, "simulated": False, "passed": passed,
                       "machine": {"gpu_name": torch.cuda.get_device_name()}, "units": {}, "samples": [],
                       "notes": ["measured by itself, not in turns with the other contenders"],
                       "parameters": {"torch": torch.__version__, "triton": triton.__version__, "multiprocessors": getattr(module, "NUM_SMS", 0)},
                       "rows": rows}, file, indent=1)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
