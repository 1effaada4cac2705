# SPDX-License-Identifier: Apache-2.0
"""Measures how a prefill process transfers a KV cache to a decode process through NIXL, each with a GPU: for each layer one list of
scattered pages and one notification, as engines with disaggregated prefill do. The cache has the shape of Llama-70B: 80 layers, 8 heads of
128 values of 2 bytes for keys and for values, pages of 16 tokens (32 KiB). One round compares each layer's bytes at its notification; the
others are timed. Needs NIXL's wheel and NumPy.

    NIXL_PLUGIN_DIR=<out folder>/nixl python3 prefill_decode.py --backend PEERLANE --decode-gpu 1 --json prefill_decode.json
"""

import argparse
import base64
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import zlib

import nixl_bench as bench
import numpy as np

HEADS, HEAD_VALUES, VALUE_BYTES, PAGE_TOKENS = 8, 128, 2, 16
PAGE_BYTES = PAGE_TOKENS * HEADS * HEAD_VALUES * VALUE_BYTES
SPARE = 4  # a quarter more pages than a cache uses, so that its pages are scattered


class Shape:
    def __init__(self, layers, tokens):
        self.layers, self.pages = layers, tokens // PAGE_TOKENS
        self.room = self.pages + self.pages // SPARE
        self.plane_bytes = self.room * PAGE_BYTES  # of one layer's keys, or values
        self.layer_bytes = 2 * self.plane_bytes
        self.moved_bytes = 2 * self.pages * PAGE_BYTES * layers

    def used_pages(self, seed):
        return np.random.default_rng(seed).permutation(self.room)[: self.pages]

    def descriptors(self, base, layer, used):
        """(address, bytes, device) of a layer's pages: keys, then values."""
        plane = base + layer * self.layer_bytes
        out = np.empty((2 * self.pages, 3), np.uint64)
        out[: self.pages, 0] = plane + used.astype(np.uint64) * PAGE_BYTES
        out[self.pages :, 0] = plane + self.plane_bytes + used.astype(np.uint64) * PAGE_BYTES
        out[:, 1], out[:, 2] = PAGE_BYTES, 0
        return out

    def layer_values(self, layer):
        """The bytes that prefill writes into a layer's planes."""
        return np.random.default_rng(1000 + layer).integers(0, 256, (2, self.room, PAGE_BYTES), np.uint8)


def read_layer(cache, shape, layer):
    out = np.empty(shape.layer_bytes, np.uint8)
    bench.call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(cache.address + layer * shape.layer_bytes),
               ctypes.c_size_t(out.nbytes))
    return out.reshape(2, shape.room, PAGE_BYTES)


def answer(value):
    print(bench.MARK + json.dumps(value), flush=True)


def decode(backend, shape):
    """Waits for rounds of notifications. With `check`, sums a layer's pages at its notification."""
    bench.use_gpu()
    agent = bench.make_agent("decode", backend)
    cache = bench.Device(shape.layers * shape.layer_bytes)
    bench.register(agent, cache, backend)
    used = shape.used_pages(2)
    answer({"address": cache.address, "metadata": base64.b64encode(agent.get_agent_metadata()).decode()})
    for line in sys.stdin:
        is_checked = json.loads(line)
        if is_checked:
            bench.call("cuMemsetD8_v2", ctypes.c_uint64(cache.address), ctypes.c_ubyte(0), ctypes.c_size_t(cache.size_bytes))
            bench.call("cuCtxSynchronize")
        answer("ready")
        arrivals, limit = {}, time.monotonic() + 60
        while len(arrivals) < shape.layers and time.monotonic() < limit:
            for messages in agent.get_new_notifs().values():
                for message in messages:
                    now = time.monotonic_ns()
                    layer = int(message)
                    arrivals[layer] = [now, zlib.crc32(read_layer(cache, shape, layer)[:, used].tobytes()) if is_checked else 0]
        answer([arrivals.get(layer) for layer in range(shape.layers)])


class Prefill:
    def __init__(self, backend, shape, decode_gpu):
        self.backend, self.shape = backend, shape
        environment = dict(os.environ) if decode_gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(decode_gpu)}
        arguments = [sys.executable, __file__, "--decode", "--backend", backend, "--layers", str(shape.layers), "--tokens",
                     str(shape.pages * PAGE_TOKENS)]
        self.decode = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        bench.use_gpu()
        self.agent = bench.make_agent("prefill", backend)
        self.cache = bench.Device(shape.layers * shape.layer_bytes)
        bench.register(self.agent, self.cache, backend)
        self.used = shape.used_pages(1)
        for layer in range(shape.layers):
            values = shape.layer_values(layer)
            bench.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.cache.address + layer * shape.layer_bytes),
                       ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes))
        theirs = self.answer()
        self.agent.add_remote_agent(base64.b64decode(theirs["metadata"]))
        self.handles = [self.make(layer, theirs["address"]) for layer in range(shape.layers)]

    def answer(self):
        for line in self.decode.stdout:
            if line.startswith(bench.MARK):
                return json.loads(line.removeprefix(bench.MARK))
        raise RuntimeError("the decode process has ended")

    def make(self, layer, address):
        mine = self.agent.get_xfer_descs(self.shape.descriptors(self.cache.address, layer, self.used), "VRAM")
        theirs = self.agent.get_xfer_descs(self.shape.descriptors(address, layer, self.shape.used_pages(2)), "VRAM")
        return self.agent.initialize_xfer("WRITE", mine, theirs, "decode", b"%d" % layer, backends=[self.backend])

    def hand_over(self, is_checked):
        """Transfers one cache. Returns the seconds from the first post to the (first, last) notification, and each layer's sum."""
        self.decode.stdin.write(json.dumps(is_checked) + "\n")
        self.decode.stdin.flush()
        self.answer()
        binding, begin, under_way = self.agent.agent, time.monotonic_ns(), []
        for layer, handle in enumerate(self.handles):  # in the order of prefill; checking a state also sends notifications
            if int(binding.postXferReq(handle._handle, b"%d" % layer)) == 1:
                under_way.append(handle._handle)
            if under_way and int(binding.getXferStatus(under_way[0])) != 1:
                under_way.pop(0)
        while under_way:
            under_way = [raw for raw in under_way if int(binding.getXferStatus(raw)) == 1]
        arrivals = self.answer()
        if None in arrivals:
            raise RuntimeError(f"{arrivals.count(None)} layers were not told within 60 s")
        times = [(now - begin) / 1e9 for now, _ in arrivals]
        return min(times), max(times), [checksum for _, checksum in arrivals]

    def expected(self, layer):
        return zlib.crc32(self.shape.layer_values(layer)[:, self.used].tobytes())


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="PEERLANE")
    options.add_argument("--decode-gpu", type=int, metavar="GPU", help="the decode process's GPU; else both share one")
    options.add_argument("--layers", type=int, default=80)
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--json")
    options.add_argument("--decode", action="store_true")
    given = options.parse_args()
    shape = Shape(given.layers, given.tokens)
    if given.decode:
        decode(given.backend, shape)
        return 0
    prefill = Prefill(given.backend, shape, given.decode_gpu)
    _, _, sums = prefill.hand_over(True)
    wrong = [layer for layer in range(shape.layers) if sums[layer] != prefill.expected(layer)]
    rounds = [prefill.hand_over(False)[:2] for _ in range(given.rounds)]
    prefill.decode.stdin.close()
    prefill.decode.wait(60)
    first, last = (statistics.median(one[i] for one in rounds) for i in (0, 1))
    row = {"backend": given.backend, "layers": shape.layers, "tokens": given.tokens, "page_bytes": PAGE_BYTES, "pages": 2 * shape.pages * shape.layers,
           "moved_bytes": shape.moved_bytes, "rounds": given.rounds, "first_layer_us": first * 1e6, "done_us": last * 1e6,
           "done_max_us": max(one[1] for one in rounds) * 1e6, "gb_per_s": shape.moved_bytes / last / 1e9, "bytes_right": not wrong}
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({**bench.result_file([row]), "tool": "prefill_decode"}, file, indent=1)
    print(f"{given.backend:8} {given.tokens} tokens, {row['pages']} pages, {shape.moved_bytes / 1e9:.2f} GB: {last * 1e3:.2f} ms, {row['gb_per_s']:.1f} GB/s, "
          f"first layer after {first * 1e6:.0f} us" + (f"; WRONG BYTES in layers {wrong}" if wrong else "; every byte right"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
