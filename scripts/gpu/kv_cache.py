#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures an engine loop that evicts and restores pages of a KV cache with real tensors, with every byte checked. The cache is that of a model
like Llama 3 8B (32 layers, K and V, 8 heads of 128 bfloat16 for each token), in pages of 16 tokens (32 KiB) and of 4 (8 KiB), with a pool of host
pages. At the same time runs a load like decoding: products of a few rows with large matrices, which the memory bandwidth limits.

    python3 kv_cache.py --json kv_cache.json          needs PyTorch with a GPU and Peerlane's package

Contenders: `peerlane`: one copy_blocks for all layers. `torch`: index_select into a buffer and one copy for each plane, and the reverse.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import peerlane
import torch

PLANES = 64  # 32 layers, K and V
TOKEN_BYTES = 2048  # of a plane
SEQUENCE_TOKENS = 512


def stamps(pages, plane, words):
    """Contents of pages: each 32-bit word depends on page, plane and place. `pages`: a tensor of numbers."""
    place = torch.arange(words, device=pages.device, dtype=torch.int64)
    value = pages.to(torch.int64)[:, None] * 2654435761 + place[None, :] * 40503 + plane * 97
    return (value & 0x7FFFFFFF).to(torch.int32)


class Cache:
    """GPU blocks and host pages of one page size."""

    def __init__(self, page_bytes, size_bytes):
        self.page_bytes = page_bytes
        self.blocks = size_bytes // (PLANES * page_bytes)
        self.words = page_bytes // 4
        self.gpu = [torch.zeros((self.blocks, self.words), dtype=torch.int32, device="cuda") for _ in range(PLANES)]
        begin = time.perf_counter()
        self.pool = peerlane.HostPool(self.blocks * PLANES * page_bytes)
        self.open_ms = (time.perf_counter() - begin) * 1e3
        self.pool.wait()
        self.pinned_ms = (time.perf_counter() - begin) * 1e3
        pages = self.pool.tensor((self.blocks, PLANES, self.words), torch.int32)  # a page contains its part of every plane
        self.host = [pages[:, plane] for plane in range(PLANES)]

    def write(self, blocks, pages):
        """Writes the pages with these numbers into these blocks, as the model would."""
        places, numbers = torch.as_tensor(blocks, device="cuda"), torch.as_tensor(pages, device="cuda")
        for plane, tensor in enumerate(self.gpu):
            tensor.index_copy_(0, places, stamps(numbers, plane, self.words))

    def wrong(self, blocks, pages):
        """The number of planes in which these blocks do not have these pages."""
        places, numbers = torch.as_tensor(blocks, device="cuda"), torch.as_tensor(pages, device="cuda")
        return sum(not torch.equal(tensor.index_select(0, places), stamps(numbers, plane, self.words)) for plane, tensor in enumerate(self.gpu))


class Peerlane:
    name = "peerlane"

    def __init__(self, cache, most):
        self.cache = cache

    def evict(self, host, blocks):
        return peerlane.copy_blocks_async(self.cache.host, self.cache.gpu, host, blocks, after=None)

    def restore(self, blocks, host):
        return peerlane.copy_blocks_async(self.cache.gpu, self.cache.host, blocks, host, after=None)


class Staged:
    """The same with PyTorch alone, on a separate stream."""

    name = "torch"

    def __init__(self, cache, most):
        self.cache, self.stream = cache, torch.cuda.Stream()
        self.on_gpu = torch.empty((most, cache.words), dtype=torch.int32, device="cuda")
        self.on_host = torch.empty((most, cache.words), dtype=torch.int32, pin_memory=True)

    def evict(self, host, blocks):
        count, places, pages = len(blocks), torch.from_numpy(blocks), torch.from_numpy(host)
        with torch.cuda.stream(self.stream):
            places = places.cuda(non_blocking=True)
            for gpu, cpu in zip(self.cache.gpu, self.cache.host):
                torch.index_select(gpu, 0, places, out=self.on_gpu[:count])
                self.on_host[:count].copy_(self.on_gpu[:count], non_blocking=True)
                self.stream.synchronize()
                cpu.index_copy_(0, pages, self.on_host[:count])
        return self

    def restore(self, blocks, host):
        count, places, pages = len(blocks), torch.from_numpy(blocks), torch.from_numpy(host)
        with torch.cuda.stream(self.stream):
            places = places.cuda(non_blocking=True)
            for gpu, cpu in zip(self.cache.gpu, self.cache.host):
                torch.index_select(cpu, 0, pages, out=self.on_host[:count])
                self.on_gpu[:count].copy_(self.on_host[:count], non_blocking=True)
                gpu.index_copy_(0, places, self.on_gpu[:count])
                self.stream.synchronize()
        return self

    def wait(self):
        self.stream.synchronize()


class Decode:
    """Products of `rows` rows with matrices that exceed the caches; a step is queued as one graph."""

    def __init__(self, rows):
        self.up = [torch.randn((4096, 14336), dtype=torch.bfloat16, device="cuda") for _ in range(4)]
        self.down = [torch.randn((14336, 4096), dtype=torch.bfloat16, device="cuda") for _ in range(4)]
        self.x = torch.randn((rows, 4096), dtype=torch.bfloat16, device="cuda")
        self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        self.stream.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.step()
        torch.cuda.synchronize()

    def step(self):
        for up, down in zip(self.up, self.down):
            (self.x @ up) @ down

    def run(self, steps):
        """Queues steps, and returns the events around them."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            begin.record()
            for _ in range(steps):
                self.graph.replay()
            end.record()
        return begin, end


class Engine:
    """Sequences are on the GPU or in host pages, and are exchanged."""

    def __init__(self, cache, mover, per_sequence, seed):
        self.cache, self.mover, self.rng = cache, mover, np.random.default_rng(seed)
        self.per_sequence = per_sequence
        sequences = cache.blocks // per_sequence - cache.blocks // per_sequence // 4  # a quarter of the blocks stays free
        blocks, host = self.rng.permutation(cache.blocks), self.rng.permutation(cache.blocks)
        used = sequences * per_sequence
        self.live = {i: blocks[i * per_sequence : (i + 1) * per_sequence].astype(np.int64) for i in range(sequences)}
        self.free, self.host_free, self.parked = blocks[used:].astype(np.int64), host.astype(np.int64), {}
        for number, own in self.live.items():
            cache.write(own, self.pages(number))
        torch.cuda.synchronize()

    def pages(self, number):
        return np.arange(number * self.per_sequence, (number + 1) * self.per_sequence)

    def evict(self, count, coming=()):
        """Moves sequences from the GPU to the host, except those that are still arriving. Afterwards their blocks are free, and others write them."""
        chosen = self.rng.choice([number for number in self.live if number not in coming], count, replace=False)
        blocks = np.concatenate([self.live.pop(number) for number in chosen])
        host, self.host_free = self.host_free[: len(blocks)], self.host_free[len(blocks) :]
        begin = time.perf_counter()
        operation = self.mover.evict(host, blocks)
        submitted = time.perf_counter() - begin
        for i, number in enumerate(chosen):
            self.parked[number] = host[i * self.per_sequence : (i + 1) * self.per_sequence]
        return operation, blocks, submitted

    def restore(self, count):
        """Brings parked sequences back, into free blocks."""
        chosen = list(self.rng.permutation(sorted(self.parked)))[:count]
        host = np.concatenate([self.parked.pop(number) for number in chosen])
        self.free = self.rng.permutation(self.free)
        blocks, self.free = self.free[: len(host)], self.free[len(host) :]
        begin = time.perf_counter()
        operation = self.mover.restore(blocks, host)
        submitted = time.perf_counter() - begin
        for i, number in enumerate(chosen):
            self.live[number] = blocks[i * self.per_sequence : (i + 1) * self.per_sequence]
        self.coming = set(chosen)
        return operation, host, submitted

    def check(self):
        torch.cuda.synchronize()
        return sum(self.cache.wrong(blocks, self.pages(number)) for number, blocks in self.live.items())


def measure(cache, mover_class, batch, decode, seconds):
    per_sequence = max(1, SEQUENCE_TOKENS * TOKEN_BYTES // cache.page_bytes)
    mover = mover_class(cache, batch * per_sequence)
    engine = Engine(cache, mover, per_sequence, seed=batch)
    list_bytes = batch * per_sequence * PLANES * cache.page_bytes
    times = {"evict": [], "restore": []}
    submits = {"evict": [], "restore": []}
    steps = 0
    step_ms = None
    if decode:
        begin, end = decode.run(50)
        end.synchronize()
        alone_ms = begin.elapsed_time(end) / 50
        steps = max(50, int(seconds * 1e3 / alone_ms))
        begin, end = decode.run(steps)
    stop = time.perf_counter() + seconds
    rounds = 0
    while (not end.query()) if decode else (time.perf_counter() < stop or rounds < 3):
        start = time.perf_counter()
        operation, blocks, submitted = engine.evict(batch)
        operation.wait()
        times["evict"].append(time.perf_counter() - start)
        submits["evict"].append(submitted)
        if rounds < 2 and not decode:  # the next owner writes the blocks
            cache.write(blocks, np.full(len(blocks), 0x5A5A5A))
            torch.cuda.synchronize()
        engine.free = np.concatenate([engine.free, blocks])
        start = time.perf_counter()
        operation, host, submitted = engine.restore(batch)
        operation.wait()
        times["restore"].append(time.perf_counter() - start)
        submits["restore"].append(submitted)
        engine.host_free = np.concatenate([engine.host_free, host])
        rounds += 1
    row = {"kind": "kv_cache", "contender": mover.name, "page_bytes": cache.page_bytes, "sequences": batch, "blocks": batch * per_sequence * PLANES,
           "list_bytes": list_bytes, "rounds": rounds, "beside_decode": bool(decode)}
    if decode:
        end.synchronize()
        step_ms = begin.elapsed_time(end) / steps
        again, last = decode.run(steps)
        last.synchronize()
        alone_ms = min(alone_ms, again.elapsed_time(last) / steps)
        row.update(step_ms=step_ms, step_alone_ms=alone_ms, slowdown_percent=(step_ms / alone_ms - 1) * 100)
    for name, seen in times.items():
        row[f"{name}_gb_per_s"] = list_bytes / statistics.median(seen) / 1e9
        row[f"{name}_submit_ns_per_block"] = statistics.median(submits[name]) * 1e9 / row["blocks"]
    # Both directions at once: one sequence leaves the GPU while another arrives.
    if not decode and mover.name == "peerlane":
        both = []
        operation, blocks, _ = engine.evict(batch)
        operation.wait()
        engine.free = np.concatenate([engine.free, blocks])
        for _ in range(5):
            start = time.perf_counter()
            coming, host, _ = engine.restore(batch)
            going, blocks, _ = engine.evict(batch, engine.coming)
            coming.wait()
            going.wait()
            both.append(time.perf_counter() - start)
            engine.free = np.concatenate([engine.free, blocks])
            engine.host_free = np.concatenate([engine.host_free, host])
        operation, host, _ = engine.restore(batch)
        operation.wait()
        row["both_gb_per_s"] = 2 * list_bytes / statistics.median(both) / 1e9
    row["wrong_planes"] = engine.check()
    return row


def save(options, rows):
    """Writes the file after every row, so that an interrupted run keeps its results."""
    if not options.json:
        return
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"schema": "peerlane-result/1", "tool": "kv_cache", "command_line": sys.argv, "simulated": False,
                   "passed": all(row["wrong_planes"] == 0 for row in rows), "machine": {"gpu": torch.cuda.get_device_name()}, "units": {},
                   "notes": [], "samples": [], "parameters": {"torch": torch.__version__, "gib": options.gib, "planes": PLANES}, "rows": rows},
                  file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--gib", type=int, default=4, help="of cache on the GPU, and of host pages")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--batches", default="1,4,16")
    options = parser.parse_args()
    rows = []
    decode = Decode(rows=32)
    for page_bytes in (32 << 10, 8 << 10):
        cache = Cache(page_bytes, options.gib << 30)
        print(f"pages of {page_bytes >> 10} KiB: pool of {options.gib} GiB there after {cache.open_ms:.1f} ms, pinned after {cache.pinned_ms:.0f} ms", flush=True)
        for batch in map(int, options.batches.split(",")):
            cases = [(Peerlane, None), (Peerlane, decode)]
            if batch <= 4:
                cases.append((Staged, None))
            for mover, load in cases:
                row = measure(cache, mover, batch, load, options.seconds)
                rows.append(row)
                save(options, rows)
                print(f"{row['contender']:9}{page_bytes >> 10:4} KiB x {row['blocks']:6} {'beside decode' if load else '':14}"
                      f"evict {row['evict_gb_per_s']:6.2f} GB/s  restore {row['restore_gb_per_s']:6.2f} GB/s  "
                      f"CPU {row['evict_submit_ns_per_block']:6.1f} {row['restore_submit_ns_per_block']:6.1f} ns/block"
                      + (f"  both {row['both_gb_per_s']:6.2f} GB/s" if "both_gb_per_s" in row else "")
                      + (f"  step {row['step_ms']:.3f} ms, {row['slowdown_percent']:+.1f} %" if load else "")
                      + f"  {'right' if row['wrong_planes'] == 0 else 'WRONG'} ({row['rounds']})", flush=True)
        del cache
        torch.cuda.empty_cache()
    return 0 if all(row["wrong_planes"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
