# SPDX-License-Identifier: Apache-2.0
"""Measures NIXL's transfers between two agents of one GPU with one backend: rates of scattered blocks, the time from post to done of a
short transfer, the cost of a long list of descriptors. The bytes of every case are checked. Needs NIXL's wheel and NumPy.

    NIXL_PLUGIN_DIR=<out folder>/nixl python3 nixl_bench.py --backend PEERLANE --json peerlane.json
"""

import argparse
import base64
import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import zlib

import numpy as np

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "error")
MARK = "@answer "  # UCX also writes warnings to standard output
cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)


def nixl_module():
    for name in ("nixl_cu13", "nixl_cu12"):
        try:
            return importlib.import_module(name)
        except ImportError as reason:
            missing = reason
    raise missing


def call(name, *arguments):
    if code := getattr(cuda, name)(*arguments):
        raise RuntimeError(f"{name}: {code}")


def use_gpu():
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


class Host:
    kind = "DRAM"

    def __init__(self, size_bytes, is_pinned=False):
        if is_pinned:
            pointer = ctypes.c_void_p()
            call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
            self.values = np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(pointer.value), np.uint8)
        else:
            self.values = np.empty(size_bytes, np.uint8)
        self.values[:] = 0
        self.address, self.size_bytes = self.values.ctypes.data, size_bytes

    def write(self, values):
        self.values[: len(values)] = values

    def read(self, size_bytes):
        return self.values[:size_bytes]


class Device:
    kind = "VRAM"

    def __init__(self, size_bytes):
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        self.address, self.size_bytes = pointer.value, size_bytes

    def write(self, values):
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes))

    def read(self, size_bytes):
        out = np.empty(size_bytes, np.uint8)
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(self.address), ctypes.c_size_t(out.nbytes))
        return out


def make_agent(name, backend):
    nixl = nixl_module()
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]), instantiate_all=False)
    agent.create_backend(backend)
    return agent


def register(agent, memory, backend):
    agent.register_memory(agent.get_reg_descs([(memory.address, memory.size_bytes, 0, "")], memory.kind), backends=[backend])


def pattern(size_bytes, seed):
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


def serve(backend, size_bytes):
    """The target, which gets requests by standard input."""
    use_gpu()
    agent = make_agent("target", backend)
    memories = {"host": Host(size_bytes), "device": Device(size_bytes)}
    for memory in memories.values():
        register(agent, memory, backend)
    addresses = {name: memory.address for name, memory in memories.items()}
    addresses["metadata"] = base64.b64encode(agent.get_agent_metadata()).decode()
    print(MARK + json.dumps(addresses), flush=True)
    for line in sys.stdin:
        do, name, used, seed = json.loads(line)
        answer = 0
        if do == "fill":
            memories[name].write(pattern(used, seed))
        elif do == "checksum":
            answer = zlib.crc32(memories[name].read(used))
        print(MARK + json.dumps(answer), flush=True)


def result_file(rows):
    """As docs/results.md describes it."""
    return {"schema": "peerlane-result/1", "tool": "nixl_bench", "command_line": sys.argv, "simulated": os.environ.get("PEERLANE_GPU") == "sim",
            "passed": all(row.get("bytes_right", False) for row in rows), "machine": {}, "units": {}, "notes": [], "samples": [],
            "parameters": {"nixl": nixl_module().__name__, "python": sys.version.split()[0]},
            "rows": [{"kind": "transfer", **row} for row in rows]}


class Bench:
    def __init__(self, backend, size_bytes, other_gpu=None):
        self.backend, self.size_bytes = backend, size_bytes
        # The other agent sees only that GPU, as number 0.
        environment = dict(os.environ) if other_gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(other_gpu)}
        self.target = subprocess.Popen([sys.executable, __file__, "--serve", backend, str(size_bytes)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, env=environment)
        use_gpu()
        self.agent = make_agent("initiator", backend)
        self.memories = {"host": Host(size_bytes), "pinned": Host(size_bytes, True), "device": Device(size_bytes)}
        for memory in self.memories.values():
            register(self.agent, memory, backend)
        self.addresses = self.answer()
        self.agent.add_remote_agent(base64.b64decode(self.addresses["metadata"]))
        self.rows, self.file = [], None

    def ask(self, *message):
        self.target.stdin.write(json.dumps(message) + "\n")
        self.target.stdin.flush()
        return self.answer()

    def answer(self):
        for line in self.target.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise RuntimeError("the other agent has ended")

    def blocks(self, base, order, block_bytes, kind):
        out = np.empty((len(order), 3), np.uint64)
        out[:, 0] = base + order.astype(np.uint64) * block_bytes
        out[:, 1] = block_bytes
        out[:, 2] = 0
        return self.agent.get_xfer_descs(out, kind)

    def make(self, way, mine, theirs, block_bytes, count):
        rng = np.random.default_rng(count)
        self.order = rng.permutation(count), rng.permutation(count)
        local = self.blocks(self.memories[mine].address, self.order[0], block_bytes, self.memories[mine].kind)
        remote = self.blocks(self.addresses[theirs], self.order[1], block_bytes, "DRAM" if theirs == "host" else "VRAM")
        begin = time.perf_counter()
        handle = self.agent.initialize_xfer(way, local, remote, "target", b"", backends=[self.backend])
        return handle, time.perf_counter() - begin

    def run(self, handle):
        """One transfer by the binding itself: seconds of the post, and seconds until it is done."""
        binding, raw = self.agent.agent, handle._handle
        begin = time.perf_counter()
        state = int(binding.postXferReq(raw, b""))
        posted = time.perf_counter()
        while state == 1:
            state = int(binding.getXferStatus(raw))
        end = time.perf_counter()
        if state != 0:
            raise RuntimeError(f"the transfer ended with {state}")
        return posted - begin, end - begin

    def check(self, way, mine, theirs, block_bytes, count):
        """Whether one more transfer, of new bytes, puts them at their place."""
        size, (own, other), seed = block_bytes * count, self.order, count + block_bytes
        fresh, want = pattern(size, seed), np.zeros(size, np.uint8)
        if way == "WRITE":
            self.memories[mine].write(fresh)
            self.ask("fill", theirs, size, seed + 1)
            want.reshape(count, block_bytes)[other] = fresh.reshape(count, block_bytes)[own]
        else:
            self.ask("fill", theirs, size, seed)
            self.memories[mine].write(np.zeros(size, np.uint8))
            want.reshape(count, block_bytes)[own] = fresh.reshape(count, block_bytes)[other]
        handle, _ = self.make(way, mine, theirs, block_bytes, count)
        self.run(handle)
        self.agent.release_xfer_handle(handle)
        got = self.ask("checksum", theirs, size, 0) if way == "WRITE" else zlib.crc32(self.memories[mine].read(size))
        return got == zlib.crc32(want)

    def save(self):
        """Writes the file after every row, so that an interrupted run keeps its results."""
        if self.file:
            with open(self.file, "w", encoding="utf-8") as file:
                json.dump(result_file(self.rows), file, indent=1)

    def case(self, way, mine, theirs, block_bytes, count, rounds):
        row = {"backend": self.backend, "way": way, "local": mine, "remote": theirs, "block_bytes": block_bytes, "count": count}
        try:
            handle, prepared = self.make(way, mine, theirs, block_bytes, count)
            first = self.run(handle)
            rounds = max(2, min(rounds, int(2.0 / first[1])))  # so that a slow backend also ends
            runs = [self.run(handle) for _ in range(rounds)]
            if rounds > 1000:
                runs = runs[rounds // 10 :]  # the first runs measure a CPU that has just woken up
            self.agent.release_xfer_handle(handle)
            again, prepared_again = self.make(way, mine, theirs, block_bytes, count)
            self.agent.release_xfer_handle(again)
            done = statistics.median(end for _, end in runs)
            row.update(
                rounds=rounds,
                first_prepare_ms=prepared * 1e3,
                prepare_ms=prepared_again * 1e3,
                first_ms=first[1] * 1e3,
                post_us=statistics.median(post for post, _ in runs) * 1e6,
                done_us=done * 1e6,
                done_min_us=min(end for _, end in runs) * 1e6,
                done_p90_us=sorted(end for _, end in runs)[len(runs) * 9 // 10] * 1e6,
                post_min_us=min(post for post, _ in runs) * 1e6,
                gb_per_s=block_bytes * count / done / 1e9,
                bytes_right=self.check(way, mine, theirs, block_bytes, count),
            )
        except Exception as reason:  # the next case may work
            row["error"] = f"{type(reason).__name__}: {reason}"
        self.rows.append(row)
        self.save()
        if "error" in row:
            text = row["error"][:80]
        else:
            text = f"{row['gb_per_s']:8.2f} GB/s {row['done_us']:11.2f} us done {row['post_us']:10.2f} us post {row['prepare_ms']:8.2f} ms prepare"
            text += "" if row["bytes_right"] else "  WRONG BYTES"
        print(f"{self.backend:8} {way:5} {mine:6} {theirs:6} {block_bytes:7} x {count:<7}{text}", flush=True)


    def finish(self):
        self.target.stdin.close()
        self.target.wait(60)
        return 0 if all(row.get("bytes_right") for row in self.rows) else 1


def kill_targets(backend, rounds):
    """Kills the other agent during a transfer into its memory. Each must end with an error, never hang."""
    ends = {}
    for index in range(rounds):
        bench = Bench(backend, 64 << 20)
        way, mine, theirs = (("WRITE", "host", "device"), ("READ", "device", "host"), ("WRITE", "device", "device"))[index % 3]
        handle, _ = bench.make(way, mine, theirs, 16384, 4096)
        bench.run(handle)
        deadline, ended = time.monotonic() + 30, None
        for turn in range(1 << 30):
            if turn == 3:
                bench.target.kill()
            if time.monotonic() > deadline:
                ended = "HANGS"
                break
            try:
                bench.run(handle)
            except Exception as reason:
                ended = type(reason).__name__
                break
        ends[ended] = ends.get(ended, 0) + 1
        bench.target.wait()
    print(f"{rounds} agents killed: {ends}")
    return 1 if "HANGS" in ends else 0


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="PEERLANE")
    options.add_argument("--json")
    options.add_argument("--quick", action="store_true", help="small sizes, for the simulated GPU")
    options.add_argument("--few", action="store_true", help="six cases, for a slow backend")
    options.add_argument("--between", type=int, metavar="GPU", help="the other agent's memory is of this GPU; GPU to GPU only")
    options.add_argument("--killed", type=int, help="kill so many other agents in the middle, and nothing else")
    options.add_argument("--serve", nargs=2)
    given = options.parse_args()
    if given.killed:
        return kill_targets(given.backend, given.killed)
    if given.serve:
        return serve(given.serve[0], int(given.serve[1]))
    size, rounds, short = (8 << 20, 2, 20) if given.quick else (256 << 20, 15, 20000)
    bench = Bench(given.backend, size, given.between)
    bench.file = given.json
    if given.between is not None:
        for way in ("WRITE", "READ"):
            for block_bytes, count in ((64, 1), (4096, 1), (4096, 16384), (16384, 1024), (16384, 4096), (16384, 16384), (65536, 4096)):
                bench.case(way, "device", "device", block_bytes, min(count, size // block_bytes), short if count == 1 else rounds)
        return bench.finish()
    many = 100_000 if not given.quick else 10_000
    # Short ones first: large copies change the state of the CPU's caches and clocks.
    for way in ("WRITE", "READ"):
        for mine in ("host", "device"):
            bench.case(way, mine, "device", 64, 1, short)
    if given.few:
        for way in ("WRITE", "READ"):
            bench.case(way, "host", "device", 16384, min(16384, size // 16384), 3)
        return bench.finish()
    for mine in ("host", "pinned"):
        for block_bytes, count in ((4096, 16384), (16384, 1024), (16384, 16384), (65536, 4096)):
            count = min(count, size // block_bytes)
            bench.case("WRITE", mine, "device", block_bytes, count, rounds)
            bench.case("READ", mine, "device", block_bytes, count, rounds)
    bench.case("WRITE", "device", "device", 16384, min(16384, size // 16384), rounds)
    bench.case("READ", "device", "host", 16384, min(16384, size // 16384), rounds)
    bench.case("WRITE", "device", "host", 16384, min(16384, size // 16384), rounds)
    bench.case("READ", "host", "host", 16384, min(16384, size // 16384), rounds)
    for mine in ("host", "device"):
        for way in ("WRITE", "READ"):
            bench.case(way, mine, "device", 4096, 1, short)
    bench.case("READ", "device", "host", 64, 1, short)
    bench.case("WRITE", "host", "device", 512, many, 5)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
