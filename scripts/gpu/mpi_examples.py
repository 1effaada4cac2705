#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the usual examples of mpi4py with arrays on the GPU and checks each result, under mpirun with the preloaded library:

    mpirun -n 2 -x LD_PRELOAD=.../libpeerlane-mpi-ompi.so scripts/gpu/mpi_examples.py [cupy|torch|driver]

The arrays are CuPy's, else PyTorch's; `driver` allocates memory with libcuda, the only choice on the simulated GPU. Rank r uses GPU
r modulo their number. Prints a line for each example, the latency of 8 bytes, and that of puts and gets. Exit code 77, with a reason:
mpi4py or the chosen array library is not installed.
"""

import array
import ctypes
import sys
import time

LEFT_OUT = 77
COUNT = 1000  # not a power of two, and more than a page of doubles


def leave_out(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(LEFT_OUT)


try:
    from mpi4py import MPI
except ImportError as missing:
    leave_out(f"mpi4py cannot be imported ({missing}): CI=true scripts/setup.sh installs it into .venv")


class CupyArrays:
    """A source of arrays: makes arrays of doubles (or `kind`), returns their values as a list, and waits for GPU work."""

    def __init__(self, rank):
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        self.name = f"CuPy {cupy.__version__}"

    def new(self, values, kind="d"):
        made = self.cupy.array(list(values), dtype=kind)
        self.finish()
        return made

    def values(self, made):
        return made.tolist()

    def finish(self):
        self.cupy.cuda.get_current_stream().synchronize()


class TorchArrays:
    def __init__(self, rank):
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
        self.torch = torch
        self.kinds = {"d": torch.float64, "i": torch.int32, "q": torch.int64}
        torch.cuda.set_device(rank % torch.cuda.device_count())
        self.name = f"PyTorch {torch.__version__}"

    def new(self, values, kind="d"):
        made = self.torch.tensor(list(values), dtype=self.kinds[kind], device="cuda")
        self.finish()
        return made

    def values(self, made):
        return made.tolist()

    def finish(self):
        self.torch.cuda.synchronize()


class DriverArray:
    def __init__(self, pointer, count, kind):
        self.pointer, self.count, self.kind = pointer, count, kind
        size = array.array(kind).itemsize
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": f"<{'f' if kind == 'd' else 'i'}{size}", "strides": None,
                                         "data": (pointer, False), "version": 3}


class DriverArrays:
    name = "libcuda"

    def __init__(self, rank):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.call("cuDeviceGet", ctypes.byref(device), rank % count.value)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def new(self, values, kind="d"):
        data = array.array(kind, values)
        pointer = ctypes.c_uint64()
        size = ctypes.c_size_t(len(data) * data.itemsize)
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), size)
        self.call("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(data.buffer_info()[0]), size)
        self.finish()
        return DriverArray(pointer.value, len(data), kind)

    def values(self, made):
        data = array.array(made.kind, [0] * made.count)
        size = ctypes.c_size_t(len(data) * data.itemsize)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(data.buffer_info()[0]), ctypes.c_uint64(made.pointer), size)
        return data.tolist()

    def finish(self):
        self.call("cuCtxSynchronize")


SOURCES = {"cupy": CupyArrays, "torch": TorchArrays, "driver": DriverArrays}


def open_arrays(library, rank):
    reasons = []
    for name in [library] if library else ["cupy", "torch"]:
        try:
            return SOURCES[name](rank)
        except Exception as reason:  # without a GPU, CuPy raises its own errors
            reasons.append(f"{name}: {reason!r}")
    return leave_out("; ".join(reasons))


class Examples:
    """Every method whose name does not begin with an underscore is an example."""

    def __init__(self, arrays):
        self._arrays, self._world = arrays, MPI.COMM_WORLD
        self._rank, self._size = self._world.rank, self._world.size
        self._before, self._after = (self._rank - 1) % self._size, (self._rank + 1) % self._size

    def _mine(self, rank=None, count=COUNT):
        rank = self._rank if rank is None else rank
        return [rank * 1000.0 + i for i in range(count)]

    def _zeros(self, count=COUNT, kind="d"):
        return self._arrays.new([0] * count, kind)

    def _same(self, made, wanted):
        found = self._arrays.values(made)
        wanted = list(wanted)
        if found != wanted:
            first = next(i for i, (a, b) in enumerate(zip(found, wanted)) if a != b)
            raise AssertionError(f"element {first} is {found[first]}, not {wanted[first]}")

    def send_and_receive(self):
        if self._rank % 2 == 0 and self._rank + 1 < self._size:
            self._world.Send(self._arrays.new(self._mine()), dest=self._rank + 1, tag=7)
        elif self._rank % 2 == 1:
            got, status = self._zeros(), MPI.Status()
            self._world.Recv(got, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            assert status.Get_count(MPI.DOUBLE) == COUNT and status.source == self._before and status.tag == 7
            self._same(got, self._mine(self._before))

    def one_to_the_host(self):
        out, back = self._arrays.new(self._mine()), array.array("d", [0] * COUNT)
        self._world.Sendrecv(out, self._after, recvbuf=back, source=self._before)
        assert back.tolist() == self._mine(self._before)

    def ring_without_blocking(self):
        got = self._zeros()
        requests = [self._world.Irecv(got, self._before), self._world.Isend(self._arrays.new(self._mine()), self._after)]
        MPI.Request.Waitall(requests)
        self._same(got, self._mine(self._before))

    def large_message(self):
        count = 1 << 19
        got = self._zeros(count, "q")
        self._world.Sendrecv(self._arrays.new(range(self._rank, self._rank + count), "q"), self._after, recvbuf=got,
                             source=self._before)
        self._same(got, range(self._before, self._before + count))

    def shorter_than_the_buffer(self):
        got, status = self._arrays.new([-1.0] * COUNT), MPI.Status()
        request = self._world.Isend([self._arrays.new(self._mine()), 10, MPI.DOUBLE], self._after)
        self._world.Recv(got, self._before, status=status)
        request.Wait()
        assert status.Get_count(MPI.DOUBLE) == 10
        self._same(got, self._mine(self._before, 10) + [-1.0] * (COUNT - 10))

    def probed_and_matched(self):
        request = self._world.Isend(self._arrays.new(self._mine()), self._after)
        got, status = self._zeros(), MPI.Status()
        message = self._world.Mprobe(self._before, status=status)
        assert status.Get_count(MPI.DOUBLE) == COUNT
        message.Recv(got)
        request.Wait()
        self._same(got, self._mine(self._before))

    def persistent(self):
        out, got = self._arrays.new(self._mine()), self._zeros()
        requests = [self._world.Recv_init(got, self._before), self._world.Send_init(out, self._after)]
        for _ in range(3):
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            self._same(got, self._mine(self._before))
        for one in requests:
            one.Free()

    def broadcast(self):
        data = self._arrays.new(self._mine() if self._rank == 0 else [0.0] * COUNT)
        self._world.Bcast(data, root=0)
        self._same(data, self._mine(0))

    def scatter_and_gather(self):
        root = self._size - 1
        everything = self._arrays.new(range(10 * self._size), "i") if self._rank == root else None
        mine = self._zeros(10, "i")
        self._world.Scatter(everything, mine, root=root)
        self._same(mine, range(10 * self._rank, 10 * self._rank + 10))
        back = self._zeros(10 * self._size, "i") if self._rank == root else None
        self._world.Gather(mine, back, root=root)
        if self._rank == root:
            self._same(back, range(10 * self._size))

    def allreduce(self):
        total = self._zeros()
        self._world.Allreduce(self._arrays.new(self._mine()), total, op=MPI.SUM)
        self._same(total, (sum(r * 1000.0 + i for r in range(self._size)) for i in range(COUNT)))
        self._world.Allreduce(MPI.IN_PLACE, total, op=MPI.MAX)
        self._same(total, (sum(r * 1000.0 + i for r in range(self._size)) for i in range(COUNT)))

    def allreduce_without_blocking(self):
        total = self._zeros()
        self._world.Iallreduce(self._arrays.new(self._mine()), total, op=MPI.MAX).Wait()
        self._same(total, self._mine(self._size - 1))

    def reduce(self):
        total = self._zeros()
        self._world.Reduce(self._arrays.new(self._mine()), total, op=MPI.MIN, root=0)
        self._same(total, self._mine(0) if self._rank == 0 else [0.0] * COUNT)

    def matrix_times_vector(self):
        """Each rank has rows of the matrix and a part of the vector; all gather the vector."""
        rows = 4
        n = rows * self._size
        part = self._arrays.new([self._rank * rows + i + 1.0 for i in range(rows)])
        whole = self._zeros(n)
        self._world.Allgather(part, whole)
        self._same(whole, (i + 1.0 for i in range(n)))

    def blocks_of_different_sizes(self):
        counts = [r + 1 for r in range(self._size)]
        offsets = [sum(counts[:r]) for r in range(self._size)]
        whole = self._zeros(sum(counts))
        self._world.Allgatherv(self._arrays.new([float(self._rank)] * counts[self._rank]), [whole, counts, offsets, MPI.DOUBLE])
        self._same(whole, (float(r) for r in range(self._size) for _ in range(counts[r])))

    def all_to_all(self):
        got = self._zeros(5 * self._size)
        self._world.Alltoall(self._arrays.new([float(10 * self._rank + destination) for destination in range(self._size) for _ in range(5)]), got)
        self._same(got, (float(10 * source + self._rank) for source in range(self._size) for _ in range(5)))

    def column_of_a_matrix(self):
        rows, columns = 30, 20
        column = MPI.DOUBLE.Create_vector(rows, 1, columns).Commit()
        out = self._arrays.new(float(self._rank * 10000 + i) for i in range(rows * columns))
        got = self._arrays.new([-1.0] * (rows * columns))
        self._world.Sendrecv([out, 1, column], self._after, recvbuf=[got, 1, column], source=self._before)
        self._same(got, (self._before * 10000.0 + i if i % columns == 0 else -1.0 for i in range(rows * columns)))
        column.Free()

    def subarray_and_scattered_elements(self):
        inner = MPI.DOUBLE.Create_subarray([10, 10], [4, 5], [3, 2]).Commit()
        some = MPI.DOUBLE.Create_indexed([3, 1, 2], [0, 7, 90]).Commit()
        for kind, chosen in ((inner, {10 * y + x for y in range(3, 7) for x in range(2, 7)}), (some, {0, 1, 2, 7, 90, 91})):
            got = self._arrays.new([-1.0] * 100)
            self._world.Sendrecv([self._arrays.new(self._mine(count=100)), 1, kind], self._after, recvbuf=[got, 1, kind],
                                 source=self._before)
            wanted = self._mine(self._before, 100)
            self._same(got, (wanted[i] if i in chosen else -1.0 for i in range(100)))
            kind.Free()

    def window_put_and_get(self):
        exposed, got = self._zeros(), self._zeros()
        window = MPI.Win.Create(exposed, disp_unit=8, comm=self._world)
        window.Fence()
        window.Put(self._arrays.new(self._mine()), self._after)
        window.Fence()
        self._same(exposed, self._mine(self._before))
        window.Get(got, self._after)
        window.Fence()
        self._same(got, self._mine())
        window.Free()

    def memory_attached_to_a_dynamic_window(self):
        exposed, got, one = self._zeros(), self._zeros(), self._arrays.new(self._mine())
        window = MPI.Win.Create_dynamic(comm=self._world)
        window.Attach(exposed)
        places = self._world.allgather(MPI.Get_address(exposed))
        window.Lock(self._after)
        window.Put(one, self._after, target=[places[self._after], len(self._mine()), MPI.DOUBLE])
        window.Flush(self._after)
        window.Get(got, self._after, target=[places[self._after], len(self._mine()), MPI.DOUBLE])
        window.Unlock(self._after)
        self._same(got, self._mine())
        self._world.Barrier()
        self._same(exposed, self._mine(self._before))
        window.Detach(exposed)
        window.Free()

    def window_of_a_target_that_does_nothing(self):
        exposed = self._arrays.new([0, 0] + [self._rank] * 8, "q")
        window = MPI.Win.Create(exposed, disp_unit=8, comm=self._world)
        window.Lock_all()
        one, old = self._arrays.new([1], "q"), self._zeros(1, "q")
        window.Accumulate([one, 1, MPI.LONG_LONG], 0, target=[0, 1, MPI.LONG_LONG])
        window.Fetch_and_op(one, old, 0, target_disp=1, op=MPI.SUM)
        window.Flush(0)
        assert 0 <= self._arrays.values(old)[0] < self._size
        window.Unlock_all()
        self._world.Barrier()
        window.Lock(self._rank)
        if self._rank == 0:
            self._same(exposed, [self._size, self._size] + [0] * 8)
        window.Unlock(self._rank)
        window.Free()

    def _all(self):
        for name in (name for name in dir(self) if not name.startswith("_")):
            getattr(self, name)()
            self._world.Barrier()
            if self._rank == 0:
                print(f"{name.replace('_', ' ')}: ok", flush=True)


def latency_us(out, got, turns):
    """Latency of 8 bytes between ranks 0 and 1: half of the median of single round trips."""
    world = MPI.COMM_WORLD
    times = []
    for _ in range(turns + 100):
        begin = time.perf_counter()
        if world.rank == 0:
            world.Send(out, 1)
            world.Recv(got, 1)
        elif world.rank == 1:
            world.Recv(got, 0)
            world.Send(out, 0)
        times.append(time.perf_counter() - begin)
    return sorted(times[100:])[turns // 2] / 2 * 1e6


def address_us(made, turns=1000):
    """The time in which mpi4py finds the address of an array, which it does once for each array in every call: the median."""
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        MPI.Get_address(made)
        times.append(time.perf_counter() - begin)
    return sorted(times)[turns // 2] * 1e6


def print_latencies(arrays, turns):
    """Latencies with the arrays, whose interface Python reads in every call; with an address that was read once; and with host memory,
    which shows the part of Python and MPI."""

    def once(address):
        return [MPI.buffer.fromaddress(address, 8), 8, MPI.BYTE]

    out, got = arrays.new([1.0]), arrays.new([0.0])
    host = [array.array("d", [1.0]) for _ in range(2)]
    gpu = latency_us(out, got, turns), latency_us(*(once(one.__cuda_array_interface__["data"][0]) for one in (out, got)), turns)
    floor = latency_us(*host, turns), latency_us(*(once(one.buffer_info()[0]) for one in host), turns)
    if MPI.COMM_WORLD.rank == 0:
        print(f"8 bytes one way: {gpu[0]:.2f} us with arrays, {gpu[1]:.2f} us with MPI.buffer.fromaddress", flush=True)
        print(f"the same in host memory: {floor[0]:.2f} us with Python's arrays, {floor[1]:.2f} us with MPI.buffer.fromaddress")
        print(f"mpi4py finds the address of an array: {address_us(out):.2f} us on the GPU, {address_us(host[0]):.2f} us of the host",
              flush=True)


def one_sided_us(window, call, size, turns):
    """A call of rank 0 and its flush: the median."""
    times = []
    for _ in range(turns + 5):
        begin = time.perf_counter()
        call(size)
        window.Flush(1)
        times.append(time.perf_counter() - begin)
    return sorted(times[5:])[turns // 2] * 1e6


def print_one_sided(arrays, largest=1 << 24):
    """Rank 0 puts to and gets from the window of rank 1, which waits in a barrier. In the last column the data is in host memory."""
    world = MPI.COMM_WORLD
    exposed, local, host = arrays.new([0] * (largest // 8), "q"), arrays.new([1] * (largest // 8), "q"), array.array("q", [2] * (largest // 8))
    window = MPI.Win.Create(exposed, disp_unit=1, comm=world)
    device = MPI.buffer.fromaddress(local.__cuda_array_interface__["data"][0], largest)
    model = "by the origin alone" if window.Get_attr(MPI.WIN_MODEL) != MPI.WIN_SEPARATE else "by a copy in host memory"
    if world.rank == 0:
        print(f"a window of device memory, reached {model}: us for a call and its flush", flush=True)
        window.Lock(1)
        for size in (8, 4096, 65536, 1 << 20, largest):
            turns = 200 if size < 1 << 20 else 20
            put, get, accumulate, from_host = (
                one_sided_us(window, call, size, turns) for call in (
                    lambda n: window.Put([device, n, MPI.BYTE], 1, target=[0, n, MPI.BYTE]),
                    lambda n: window.Get([device, n, MPI.BYTE], 1, target=[0, n, MPI.BYTE]),
                    lambda n: window.Accumulate([device, n // 8, MPI.LONG_LONG], 1, target=[0, n // 8, MPI.LONG_LONG]),
                    lambda n: window.Put([host, n, MPI.BYTE], 1, target=[0, n, MPI.BYTE])))
            print(f"{size:9} bytes: put {put:.2f}, get {get:.2f}, accumulate {accumulate:.2f}, put from the host {from_host:.2f}", flush=True)
        window.Unlock(1)
    world.Barrier()
    window.Free()


def main():
    world = MPI.COMM_WORLD
    arrays = open_arrays(sys.argv[1] if len(sys.argv) > 1 else None, world.rank)
    if world.rank == 0:
        print(f"Python {sys.version.split()[0]}, {MPI.Get_library_version().split(',')[0]}, {world.size} ranks, arrays of {arrays.name}")
    try:
        Examples(arrays)._all()
        if world.size > 1:
            print_latencies(arrays, 1000)
            print_one_sided(arrays)
    except Exception as failure:  # otherwise the other ranks would wait forever
        print(f"rank {world.rank}: {failure!r}", file=sys.stderr, flush=True)
        world.Abort(1)


main()
