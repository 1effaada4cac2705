#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mpi4py's own tests, of its source distribution, on memory of the host or of the simulated GPU.

    mpirun ... mpi4py_suite.py run host|device|windows|copied <folder of its tests> <folder for outcomes, or -> <module>...
    mpi4py_suite.py compare <folder of its tests> <module>... -- mpirun ...

host: the suite as it is. device: its array classes are replaced by one whose memory is the GPU's. windows: MPI.Alloc_mem as well, so
that windows are device memory; copied: the same with PEERLANE_MPI_WINDOWS=copied. compare: runs `host` under this mpirun with its LD_PRELOAD and without, and every test must end in the
same way on every rank. Exit code 77 with a reason where mpi4py or its tests are missing.
"""

import collections
import ctypes
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
import unittest

MISSING = 77
# Element types, of several sizes and kinds: with all twenty, two polling ranks take minutes. Of the arrays in host memory likewise.
KINDS = {"host": "bd", "device": "?bdg", "windows": "?bdg", "copied": "?bd"}
FAILURES_SHOWN = 3  # of a test; one with subtests may have thousands

# Tests that are not run: of which MPI, in which runs, which, and why. A pattern is matched against the whole name.
LEFT_OUT = [
    (r"Open MPI v4\.1", "host device windows copied", r"test_rma(_nb)?\.TestRMASelf\..*|test_win\.TestWinCreate(Dynamic)?Self\..*",
     "it makes no window of memory for a communicator of one rank: MPI_Win_create fails with MPI_ERR_WIN, without the library too"),
    (r"Open MPI v4\.1", "host device copied", r"test_rma\.TestRMAWorld\.testCompareAndSwap",
     "MPI_Compare_and_swap of 8 bytes faults in host memory of the calling rank, in mca_btl_vader_emu_acswap, without the library too"),
    ("", "copied", r"test_win\.TestWinCreateDynamic(Self|World)\.testAttachDetach",
     "device memory is attached for direct access only (docs/mpi-shim.md#dynamic-windows)"),
    ("", "device", r"test_io\..*\.testReadWrite(|At|Shared)(All|Ordered)BeginEnd",
     "MPI-IO in two calls refuses device memory (docs/mpi-shim.md#how-it-works)"),
    ("", "device", r"test_p2p_buf_part\..*\.(testRing|testRingRangeList|testSelf)",
     "partitioned messages refuse device memory (docs/mpi-shim.md#how-it-works)"),
]


def missing(reason):
    print(f"SKIPPED: {reason}", flush=True)
    sys.exit(MISSING)


class Driver:
    """Memory of libcuda, which with the simulated GPU faults when a CPU touches it. Blocks are kept for the next array."""

    def __init__(self, rank):
        self.cuda, self.blocks = ctypes.CDLL("libcuda.so.1"), {}
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

    def take(self, size):
        size = max(256, 1 << (size - 1).bit_length()) if size > 0 else 256
        kept = self.blocks.setdefault(size, [])
        if kept:
            return size, kept.pop()
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return size, pointer.value

    def write(self, pointer, data):
        if data.nbytes:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes))
            self.call("cuCtxSynchronize")

    def read(self, pointer, data):
        if data.nbytes:
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(pointer), ctypes.c_size_t(data.nbytes))
        return data


def device_array(arrayimpl, driver):
    """A class as those in the suite's arrayimpl.py, with the element types of its NumPy arrays."""
    import numpy

    class Flat:
        """All elements, as if there were one dimension."""

        def __init__(self, owner):
            self.owner = owner

        def __iter__(self):
            return iter(self.owner.array.flat)

        def __getitem__(self, i):
            return self.owner.array.flat[i]

        def __array__(self, dtype=None, copy=None):
            return self.owner.array.reshape(-1)

        def __setitem__(self, i, value):
            changed = self.owner.array
            changed.flat[i] = numpy.asarray(value)
            driver.write(self.owner.address, changed)

    class DeviceArray(arrayimpl.BaseArray):
        backend = "driver"
        TypeMap = arrayimpl.ArrayNumPy.TypeMap

        def __init__(self, arg, typecode, shape=None, readonly=False):
            host = arrayimpl.ArrayNumPy(arg, typecode, shape).array
            self.dtype, self.shape = host.dtype, host.shape
            self.block, self.address = driver.take(host.nbytes)
            driver.write(self.address, numpy.ascontiguousarray(host))
            self.__cuda_array_interface__ = {"version": 0, "data": (self.address, readonly), "shape": self.shape,
                                             "typestr": arrayimpl.typestr(typecode, self.itemsize)}

        def __del__(self):
            if hasattr(self, "address"):
                driver.blocks[self.block].append(self.address)

        @property
        def array(self):
            """What it holds now, copied to the host."""
            return driver.read(self.address, numpy.empty(self.shape, self.dtype))

        def __setitem__(self, i, value):
            changed = self.array
            changed[i] = value
            driver.write(self.address, changed)

        def __iter__(self):
            return iter(self.array)

        def as_raw(self):
            return self

        typecode = property(lambda self: self.dtype.char)
        itemsize = property(lambda self: self.dtype.itemsize)
        size = property(lambda self: int(numpy.prod(self.shape)))
        flat = property(Flat)

    return DeviceArray


class Outcomes(unittest.TestResult):
    """How each test ended, also in a file: what a rank wrote before it died is read as well."""

    def __init__(self, rank, folder):
        super().__init__()
        self.rank, self.ended, self.shown = rank, {}, {}
        self.path = None if folder == "-" else pathlib.Path(folder) / f"{rank}.json"

    def set(self, name, outcome):
        self.ended[name] = outcome
        if self.path:
            self.path.write_text(json.dumps(self.ended), encoding="utf-8")

    def startTest(self, test):
        super().startTest(test)
        self.set(test.id(), "did not end")

    def stopTest(self, test):
        super().stopTest(test)
        if self.ended[test.id()] == "did not end":
            self.set(test.id(), "passed")

    def failed(self, name, test, error):
        self.set(name, "failed")
        self.shown[name] = self.shown.get(name, 0) + 1
        if self.shown[name] <= FAILURES_SHOWN:
            print(f"rank {self.rank}: {test}\n{''.join(traceback.format_exception(*error))}", file=sys.stderr, flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        self.failed(test.id(), test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.failed(test.id(), test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed(test.id(), subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.set(test.id(), f"skipped: {reason}")


def tests_in(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_in(one)
        else:
            yield one


def reason_to_leave_out(name, mode, library):
    for of, modes, pattern, reason in LEFT_OUT:
        if mode in modes.split() and re.search(of, library) and re.fullmatch(pattern, name):
            return reason
    return None


def run(mode, folder, out, *modules):
    if not (pathlib.Path(folder) / "arrayimpl.py").exists():
        missing(f"{folder} does not hold mpi4py's tests: scripts/setup.sh --tests fetches them")
    try:
        import mpi4py
    except ImportError as reason:
        missing(f"mpi4py cannot be imported ({reason}): scripts/setup.sh --tests installs it into .venv")
    sys.path.insert(0, folder)
    sys.modules["cupy"] = sys.modules["numba"] = None  # their memory is not the simulated GPU's
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI
    import arrayimpl
    import mpiunittest

    # The suite gives up all tests of windows where MPI makes none for one rank; LEFT_OUT is narrower.
    disable = mpiunittest.disable
    mpiunittest.disable = lambda tests, reason: tests if reason.startswith(("mpi-rma", "mpi-win")) else disable(tests, reason)
    rank, library = MPI.COMM_WORLD.rank, " ".join(re.split(r"[,\n]", MPI.Get_library_version())[0].split())
    driver = Driver(rank)  # also for `host`: where libcuda is loaded, every buffer is asked for
    if mode != "host":
        DeviceArray = device_array(arrayimpl, driver)
        arrayimpl.ArrayBackends[:] = [DeviceArray]
    else:
        arrayimpl.ArrayBackends[:] = [arrayimpl.ArrayArray, arrayimpl.ArrayNumPy]
    for backend in arrayimpl.ArrayBackends:
        backend.TypeMap = {kind: of for kind, of in backend.TypeMap.items() if kind in KINDS[mode]}
    suite, left_out = unittest.TestSuite(), collections.Counter()
    loaded = [importlib.import_module(name) for name in modules]
    if mode in ("windows", "copied"):
        MPI.Alloc_mem, MPI.Free_mem = (lambda size, info=None: DeviceArray(0, "b", size)), (lambda memory: None)
    for module in loaded:
        for test in tests_in(unittest.defaultTestLoader.loadTestsFromModule(module)):
            reason = reason_to_leave_out(test.id(), mode, library)
            if reason is None:
                suite.addTest(test)
            else:
                left_out[reason] += 1
    outcomes = Outcomes(rank, out)
    suite.run(outcomes)
    ended = list(outcomes.ended.values())
    if rank == 0:
        for reason, count in left_out.items():
            print(f"left out: {count} tests: {reason}")
        for name, outcome in outcomes.ended.items():
            if outcome != "passed":
                print(f"{name}: {outcome}")
        print(f"{library}, {MPI.COMM_WORLD.size} ranks, {mode}: {ended.count('passed')} of {len(ended)} tests passed", flush=True)
    sys.exit(0 if outcomes.wasSuccessful() and "passed" in ended else 1)


def without_preload(words):
    """mpirun's words without the variable: -x NAME=VALUE of Open MPI, -genv NAME VALUE of MPICH."""
    out = list(words)
    for i, word in enumerate(words):
        if word.startswith("LD_PRELOAD="):
            del out[i - 1:i + 1]
        elif word == "LD_PRELOAD":
            del out[i - 1:i + 2]
    assert len(out) < len(words), f"no LD_PRELOAD in {words}"
    return out


def outcomes_of(launcher, folder, modules):
    with tempfile.TemporaryDirectory() as out:
        ran = subprocess.run([*launcher, sys.executable, "-B", __file__, "run", "host", folder, out, *modules], check=False)
        if ran.returncode == MISSING:
            sys.exit(MISSING)
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in pathlib.Path(out).iterdir()}


def compare(*arguments):
    split = arguments.index("--")
    (folder, *modules), launcher = arguments[:split], arguments[split + 1:]
    with_library = outcomes_of(launcher, folder, modules)
    without = outcomes_of(without_preload(launcher), folder, modules)
    count, wrong = 0, []
    for rank in sorted(with_library.keys() | without.keys()):
        one, other = with_library.get(rank, {}), without.get(rank, {})
        for name in sorted(one.keys() | other.keys()):
            count += one.get(name) == "passed"
            if one.get(name) != other.get(name):
                wrong.append(f"rank {rank}: {name}: {one.get(name)} with the library, {other.get(name)} without")
            elif one[name] == "did not end":
                wrong.append(f"rank {rank}: {name}: did not end, with the library and without")
    if wrong:
        print("\n".join(wrong))
    print(f"{count} tests passed with and without the library" if not wrong else f"{len(wrong)} tests differ")
    sys.exit(1 if wrong or count == 0 else 0)


if __name__ == "__main__":
    {"run": run, "compare": compare}[sys.argv[1]](*sys.argv[2:])
