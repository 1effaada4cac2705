#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the parts of the package in programs that have used up the GPU's memory: full_memory.py [MiB that stay free, default 0 4 40].

Each part runs in a process of its own that first fills the memory: twice while it is full, then once after it was freed. Mappings, copies
and messages must work in all three, others may say that there is no memory; all must work at the end. Exit code 1: one did not.
The store needs the program `peerlane`: the variable PL_TEST_PROGRAM, default: the one on PATH."""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import peerlane
from peerlane import testing

COUNT = 1 << 22  # float32 in each of both arrays
NEEDS_MEMORY = ("triggered",)


class View:
    """The first elements of an array, in another shape."""

    def __init__(self, x, *shape):
        self.x, self.__cuda_array_interface__ = x, dict(x.__cuda_array_interface__, shape=shape, strides=None)


@contextlib.contextmanager
def full_gpu(left_mib):
    """Holds all memory of GPU 0 but `left_mib` MiB; 0: down to single pages."""
    call, parts = testing.driver().call, []
    free, total, smallest = ctypes.c_size_t(), ctypes.c_size_t(), 1 << 20 if left_mib else 1 << 12
    size = 1 << 36
    while size >= smallest and len(parts) < 3000:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        part = ctypes.c_uint64()
        try:
            if free.value < size + (left_mib << 20) and (left_mib or size > 2 << 20):
                raise testing.CudaError
            call("cuMemAlloc_v2", ctypes.byref(part), ctypes.c_size_t(size))
            parts.append(part)
        except testing.CudaError:
            size >>= 1
    yield
    for part in parts:
        call("cuMemFree_v2", part)


def address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def is_filled(x, value):
    back = np.zeros(COUNT, "float32")
    peerlane.copy(back, x)
    return (back == value).all()


def mapping(x, y, host, _):
    with peerlane.map(x) as m:
        m[5] = 7.0
        assert m[5] == 7.0
        m[0:1000] = np.arange(1000, dtype="float32")
        assert (m.read()[:1000] == np.arange(1000)).all()


def copies(x, y, host, _):
    for n in (1, 1000, 100_000, COUNT):
        host[:n] = n
        peerlane.copy(View(x, n), host[:n])
        back = np.zeros(n, "float32")
        peerlane.copy(back, View(x, n))
        assert (back == n).all()


def within_the_gpu(x, y, host, _):
    peerlane.fill(x, 3.0)
    peerlane.copy(y, x)
    assert is_filled(y, 3)


def in_background(x, y, host, _):
    host[:] = 4
    peerlane.wait_all([peerlane.copy_async(x, host) for _ in range(4)])
    assert is_filled(x, 4)


def blocks(x, y, host, _):
    with peerlane.HostPool(64 << 20) as pool:
        pages = pool.array((1024, 4096), "float32")
        pages[:] = np.arange(1024)[:, None]
        order = np.random.default_rng(1).permutation(1024)
        peerlane.copy_blocks(View(x, 1024, 4096), pages, order, np.arange(1024))
        back = np.zeros((1024, 4096), "float32")
        peerlane.copy(back, View(x, 1024, 4096))
        assert (back[order] == pages).all()
        del pages


def messages(x, y, host, _):
    with peerlane.communicator.open(rendezvous=address(), rank=0, size=1) as comm:
        peerlane.fill(x, 5.0)
        peerlane.wait_all([comm.irecv(0, y, tag=1), comm.isend(0, x, tag=1)], 20)
        assert is_filled(y, 5)
        window = comm.expose(x)
        comm.put(window.key, 0, y).wait(20)


def triggered(x, y, host, _):
    with peerlane.triggered.open(device=0, rendezvous=address(), rank=0, size=1) as context:
        context.barrier()


def store(x, y, host, folder):
    with peerlane.store.open(f"{folder}/store.sock") as connection:
        pool = connection.create_pool(f"pool{time.time_ns()}", durability="logged")
        peerlane.fill(x, 6.0)
        pool.put("a", x)
        pool.get("a", y)
        assert is_filled(y, 6)
        pool.erase("a")


def run_one(left_mib, name, folder):
    x, y, host = testing.zeros(COUNT), testing.zeros(COUNT), np.zeros(COUNT, "float32")

    def attempt(state):
        begun = time.time()
        try:
            globals()[name](x, y, host, folder)
            said = "works"
        except peerlane.Error as error:
            said = f"errno {error.errno}: {error}"
        print(f"{left_mib:4} MiB left  {name:14} {state:5} {time.time() - begun:6.2f} s  {said}", flush=True)
        return said == "works" or (state == "full" and name in NEEDS_MEMORY and "memory" in said)

    with full_gpu(left_mib):
        outcome = [attempt("full"), attempt("full")]
    time.sleep(1.1)  # some refusals are remembered for a second
    return 0 if all([*outcome, attempt("free")]) else 1


def main():
    failed = []
    folder = tempfile.mkdtemp()
    server = subprocess.Popen([os.environ.get("PL_TEST_PROGRAM", "peerlane"), "store", "serve", "--data", folder, "--listen", "none",
                               "--arena", "256M", "--chunk", "64M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        server.stdout.readline()
        for left in [int(one) for one in sys.argv[1:]] or [0, 4, 40]:
            for part in (mapping, copies, within_the_gpu, in_background, blocks, messages, triggered, store):
                command = [sys.executable, __file__, "--part", str(left), part.__name__, folder]
                if subprocess.run(command, timeout=100).returncode != 0:
                    failed.append(f"{part.__name__} at {left} MiB")
    finally:
        server.terminate()
        server.wait()
    print("full_memory: " + (", ".join(failed) + " FAILED" if failed else "all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_one(int(sys.argv[2]), *sys.argv[3:]) if sys.argv[1:2] == ["--part"] else main())
