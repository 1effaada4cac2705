#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mpi4py with objects that lie on the GPU (`__cuda_array_interface__`, as CuPy's arrays have), under mpirun with the preloaded
library. Each rank runs this file; exit 77 with a reason where mpi4py is not installed."""

import ctypes
import sys

try:
    from mpi4py import MPI
except ImportError as why:
    print(f"SKIPPED: mpi4py cannot be imported ({why}): CI=true scripts/setup.sh installs it into .venv")
    sys.exit(77)

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} failed with {code}"


class Array:
    """64-bit integers in device memory."""

    def __init__(self, values):
        pointer = ctypes.c_uint64()
        self.count = len(values)
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(8 * self.count))
        self.pointer = pointer.value
        self.set(values)

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.count,), "typestr": "<i8", "data": (self.pointer, False), "version": 3, "strides": None}

    def set(self, values):
        data = (ctypes.c_int64 * self.count)(*values)
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.pointer), data, ctypes.c_size_t(8 * self.count))
        call("cuCtxSynchronize")

    def get(self):
        data = (ctypes.c_int64 * self.count)()
        call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(self.pointer), ctypes.c_size_t(8 * self.count))
        return list(data)


def main():
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    before, after = (rank - 1) % size, (rank + 1) % size

    mine, got = Array(range(rank * 1000, rank * 1000 + 100)), Array([0] * 100)
    world.Sendrecv(mine, after, recvbuf=got, source=before)
    assert got.get() == list(range(before * 1000, before * 1000 + 100))

    got.set([0] * 100)
    requests = [world.Irecv(got, before), world.Isend(mine, after)]
    MPI.Request.Waitall(requests)
    assert got.get()[99] == before * 1000 + 99

    total = Array([0] * 100)
    world.Allreduce(mine, total, MPI.SUM)
    assert total.get() == [sum(r * 1000 + i for r in range(size)) for i in range(100)]

    world.Bcast(mine, root=1)
    assert mine.get() == list(range(1000, 1100))

    everybody = Array([0] * 100 * size)
    mine.set([rank] * 100)
    world.Allgather(mine, everybody)
    assert everybody.get() == [i // 100 for i in range(100 * size)]


main()
