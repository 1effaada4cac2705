# SPDX-License-Identifier: Apache-2.0
"""The package's entry points: the command as a module, errors in our words, asyncio's ways to wait, what objects show, what is imported."""

import asyncio
import builtins
import ctypes
import gc
import importlib
import os
import pkgutil
import re
import select
import subprocess
import sys
import time
import types

import numpy as np
import peerlane
import pytest
from peerlane import testing

# ---- python -m peerlane --------------------------------------------------------------------------------------------------


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=100)


def test_the_module_is_the_command():
    done = run("-m", "peerlane", "--version")
    assert done.returncode == 0 and peerlane.__version__ in done.stdout, done.stderr
    done = run("-m", "peerlane", "doctor")
    assert done.returncode == 0 and "this is the simulated GPU" in done.stdout, done.stdout + done.stderr
    wrong = run("-m", "peerlane", "no-such-command")
    assert wrong.returncode != 0 and "no-such-command" in wrong.stderr + wrong.stdout


def test_the_parts_in_python_run_too():
    for part in ("top", "report"):
        done = run("-m", "peerlane", part, "--help")
        assert done.returncode == 0 and f"usage: peerlane {part}" in done.stdout, done.stdout + done.stderr


# ---- Words ---------------------------------------------------------------------------------------------------------------


def refused(kind, words, call):
    with pytest.raises(kind, match=words) as told:
        call()
    assert "incompatible function arguments" not in str(told.value) and "nanobind" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("given, words", [
    (None, r"NoneType does not describe its memory \(it is None\)"), ("text", "text has no memory; encode it to bytes"),
    (7, r"a device pointer comes with its size: \(device pointer, size in bytes\)"), (1.5, r"numpy.asarray"), ([1, 2], r"numpy.asarray"),
    ((1, "2"), r"a tuple must be \(device pointer, size in bytes\), two integers"), (object(), "does not describe its memory"),
    (len, "does not describe its memory")], ids=str)
def test_what_is_no_array(given, words):
    host, x = np.zeros(4, np.float32), testing.zeros(4)
    for name, call in {"map": lambda: peerlane.map(given), "copy: the destination": lambda: peerlane.copy(given, host),
                       "copy: the source": lambda: peerlane.copy(x, given), "fill": lambda: peerlane.fill(given, 1),
                       "copy_async: the destination": lambda: peerlane.copy_async(given, x),
                       "copy_async: the source": lambda: peerlane.copy_async(x, given)}.items():
        told = refused(TypeError, words, call)
        assert told.startswith(name + ": ") and "Give a PyTorch, CuPy, Numba or JAX array" in told


def test_numbers_that_are_none():
    x = testing.zeros((2, 4))
    for words, call in {"the device pointer: -1 is negative": lambda: peerlane.map((-1, 4)),
                        f"the device pointer: {1 << 70} is negative or beyond 64 bits": lambda: peerlane.map((1 << 70, 4)),
                        "the size in bytes is negative": lambda: peerlane.map((x.address, -4)),
                        f"the size in bytes: {1 << 70} is beyond 64 bits": lambda: peerlane.map((x.address, 1 << 70)),
                        "explain: -1 is not a number of bytes": lambda: peerlane.explain("to_host", -1),
                        "gaps": lambda: peerlane.map(x[:, ::2], dtype="uint8")}.items():
        refused(ValueError, re.escape(words), call)
    for words, call in {"map: shape: expected an integer, got str": lambda: peerlane.map(x, shape=("4",)),
                        "map: shape: expected a sequence of integers, got float": lambda: peerlane.map(x, shape=1.5),
                        "unknown dtype nonsense": lambda: peerlane.map(x, dtype="nonsense"),
                        "expected a stream, got str": lambda: peerlane.copy_async(x, np.zeros((2, 4), np.float32)).make_wait("s"),
                        "the stream: expected an integer, got float": lambda: peerlane.copy(x, x, after=type("S", (), {"ptr": 1.5})())}.items():
        refused(TypeError, re.escape(words), call)
    with peerlane.map(x, shape=8) as m:  # a single number is a shape, as for NumPy
        assert m.shape == (8,)


def test_shapes_that_none_can_have():
    x = testing.zeros(64)
    for words, shape in {"a dimension of -2 elements": (-2, -32), "a dimension of -64 elements": -64, "too many elements": (1 << 40, 1 << 40),
                         "shape has too many": ((1 << 60) + 16, 1)}.items():
        refused(ValueError, words, lambda: peerlane.map(x, shape=shape, dtype="complex128" if shape[1:] == (1,) else None) if isinstance(shape, tuple)
                else peerlane.map(x, shape=shape))
    for shape in ((-1,), (-4, -16)):
        for call in (peerlane.map, lambda given: peerlane.fill(given, 1), lambda given: peerlane.copy(given, given)):
            refused(ValueError, "a dimension of -", lambda: call(Interface(x, shape=shape, strides=None)))
    with peerlane.HostPool(1 << 16) as pool:
        refused(ValueError, "shape: -1 is not from 0", lambda: pool.array((-1, -4)))
        refused(TypeError, "shape: expected an integer or a sequence of them, got float", lambda: pool.array(1.5))


def test_parts_of_testing_arrays_read_nothing():
    """Only addresses are computed: the elements are in GPU memory."""
    far = testing.zeros((1 << 12, 1 << 12), np.uint8)
    for index in (((1 << 12) - 1, -1), (-1, ..., -1), (np.int64(-1), slice(-1, None), None)):
        assert far[index].address - far.address == (1 << 24) - 1
    assert far[5].shape == (1 << 12,) and far[-1, -1].shape == () and far[..., 3, None].shape == (1 << 12, 1)
    assert testing.array(7.0)[()].get() == 7 and testing.array([1.0, 2.0])[1].get() == 2
    for index in ([1, 2], True, np.array([1, 2]), (0, np.ones(1 << 12, bool)), 1.5, "1"):
        with pytest.raises(TypeError, match="index|integer"):
            far[index]
    with pytest.raises(IndexError):
        far[1 << 12]


def test_integers_of_numpy_are_integers():
    x, host = testing.array(np.arange(64, dtype=np.uint8)), np.zeros(64, np.uint8)
    pair = (np.uint64(x.address), np.int32(16))
    with peerlane.map(pair) as m, peerlane.map(x, shape=np.int64(64)) as whole:
        assert m.shape == (16,) and whole.shape == (64,)
    peerlane.copy(host[:16], pair)
    peerlane.copy_block_list([host.ctypes.data + 16], [x.address + 16], np.int32(48))
    assert (host == np.arange(64)).all()
    peerlane.copy_async(host, x).make_wait(np.uint64(0))
    assert testing.zeros(np.int64(3)).shape == (3,) and peerlane.HostPool(1 << 16).array(np.int64(4)).shape == (4,)
    refused(ValueError, "beyond 64 bits", lambda: peerlane.map(x, shape=np.uint64((1 << 64) - 1)))
    refused(TypeError, "does not describe its memory", lambda: peerlane.map((np.array([x.address]), np.array([16]))))  # arrays are none


class Interface:
    """An object with whatever __cuda_array_interface__ a test wants."""

    def __init__(self, x, **changes):
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changes}


def test_interfaces_that_lie():
    x = testing.zeros(4)
    for words, changes in {"has no typestr": {"typestr": None}, "elements of type >f4": {"typestr": ">f4"}, "no shape": {"shape": None},
                           "shape: expected an integer, got str": {"shape": ("4",)}, "strides: expected an integer, got float": {"strides": (4.0,)},
                           "address": {"data": 5}, "masked": {"mask": 1}, "stream: expected an integer, got str": {"stream": "s"}}.items():
        refused(TypeError, words, lambda: peerlane.map(Interface(x, **changes)))
    refused(ValueError, "number of dimensions", lambda: peerlane.map(Interface(x, strides=(4, 4))))
    wrong = Interface(x)
    wrong.__cuda_array_interface__ = 5
    refused(TypeError, "is not a dictionary", lambda: peerlane.map(wrong))


def test_words_of_the_store(tmp_path):
    pool = peerlane.store.Pool(types.SimpleNamespace(_connection=types.SimpleNamespace(**dict.fromkeys(("put", "get", "erase", "stat", "find")))), 1)  # nothing is asked of the store itself
    for given in (5, None, 1.5):
        for call in (lambda: pool.put(given, b""), lambda: pool.get(given, bytearray(1)), lambda: pool.erase(given), lambda: pool.stat(given)):
            refused(TypeError, "key: expected str or bytes, got ", call)
    refused(TypeError, "prefix: expected str or bytes, got int", lambda: pool.keys(5))
    refused(ValueError, "durability: 'always' is not one of None, 'volatile', 'logged', 'durable'",
            lambda: pool.put("k", b"", durability="always"))
    refused(ValueError, "condition: 'new' is not one of", lambda: pool.put("k", b"", condition="new"))
    refused(peerlane.Error, "nobody.sock", lambda: peerlane.store.open(tmp_path / "nobody.sock"))


def test_words_of_messages(tmp_path):
    x = testing.zeros(4)
    with peerlane.communicator.open(rendezvous=f"file:{tmp_path}", rank=0, size=1) as job:
        key = job.expose(x).key
        for words, call in {"peer: expected an integer, got str": lambda: job.send("0", x), "peer: expected an integer, got NoneType": lambda: job.isend(None, x),
                            "source: expected an integer, got float": lambda: job.recv(0.5, x), "tag: expected an integer, got str": lambda: job.irecv(0, x, "t"),
                            "key: expected bytes, got str": lambda: job.put("key", 0, x),
                            "offset: expected an integer, got NoneType": lambda: job.get(key, None, x), "operand: expected an integer, got str": lambda: job.fetch_add(key, 0, "1"),
                            "all_gather: expected bytes, got int": lambda: job.all_gather(5), "peer: expected an integer, got list": lambda: job.plan([]),
                            "the message's tensor: NoneType does not describe its memory": lambda: job.send(0, None),
                            "expose: int does not describe its memory": lambda: job.expose(5)}.items():
            refused(TypeError, words, call)
        for words, call in {"peer: 4294967296 is out of range": lambda: job.send(1 << 32, x), "tag: -1 is negative": lambda: job.send(0, x, -1),
                            "the key does not belong to a window": lambda: job.put(b"key", 0, x)}.items():
            refused(ValueError, words, call)


def test_words_of_openings_and_options():
    """Each argument that is wrong is named; what opens a thing does not leave that to the compiled module."""
    x, pool = testing.zeros((4, 8)), peerlane.store.Pool(types.SimpleNamespace(_connection=types.SimpleNamespace(find=None, get=None, erase=None)), 1)
    store = peerlane.store.Store(types.SimpleNamespace(create_pool=None, open_pool=None, delete_pool=None, is_open=True))
    for words, call in {
            "size_bytes: expected an integer, got str": lambda: peerlane.HostPool("1G"),
            "device: expected an integer, got NoneType": lambda: peerlane.HostPool(1 << 20, device=None),
            "piece_bytes: expected an integer, got float": lambda: peerlane.HostPool(1 << 20, piece_bytes=1.5),
            "rendezvous: expected text, got NoneType": lambda: peerlane.communicator.open(rendezvous=None),
            "rank: expected an integer, got str": lambda: peerlane.communicator.open(rank="0"), "size: expected an integer, got float": lambda: peerlane.triggered.open(size=2.0),
            "host_only: expected True or False, got int": lambda: peerlane.communicator.open(host_only=1),
            "timeout: expected a number of seconds, got str": lambda: peerlane.communicator.open(timeout="60"),
            "wait_timeout: expected a number of seconds, got NoneType": lambda: peerlane.triggered.open(wait_timeout=None),
            "device: expected an integer, got str": lambda: peerlane.triggered.open(device="cuda"), "economy: expected True or False, got str": lambda: peerlane.triggered.open(economy="yes"),
            "urgent: expected True or False, got NoneType": lambda: peerlane.copy_blocks(x, x, [0], [1], urgent=None),
            "urgent: expected True or False, got str": lambda: peerlane.copy_block_list([1], [2], 3, urgent="no"),
            "wait_all: expected an operation, got int": lambda: peerlane.wait_all([1]),
            "wait_any: expected an operation, got NoneType": lambda: peerlane.wait_any([None]), "timeout: expected a number of seconds, got list": lambda: peerlane.store.open("a:1", timeout=[]),
            "tls: expected three file names: certificate, private key and certificate authority": lambda: peerlane.store.open("a:1", tls="server.crt"), "tls: expected text, got int": lambda: peerlane.store.open("a:1", tls=("a", "b", 3)),
            "name: expected text, got int": lambda: store.create_pool(5), "name: expected text, got bytes": lambda: store.open_pool(b"p"),
            "name: expected text, got NoneType": lambda: store.delete_pool(None), "cache: expected True or False, got str": lambda: store.create_pool("p", cache="yes"),
            "ttl: expected a number of seconds, got str": lambda: store.create_pool("p", ttl="1h"), "verify: expected True or False, got str": lambda: pool.get("k", bytearray(1), verify="x"),
            "version: expected an integer, got float": lambda: pool.erase("k", version=1.0), "regex: expected text, got bytes": lambda: pool.keys(regex=b"a"),
    }.items():
        refused(TypeError, "^" + re.escape(words), call)
    for words, call in {"name: 'a\\x00b' contains a zero byte": lambda: store.open_pool("a\0b"),
                        "rendezvous: 'file:\\udcff' is not Unicode": lambda: peerlane.communicator.open(rendezvous="file:\udcff", rank=0, size=1),
                        "size_bytes: -1 is not from 0 to": lambda: peerlane.HostPool(-1), "device: -1 is not from 0": lambda: peerlane.HostPool(1, device=-1),
                        "timeout: expected a number of seconds below 3e10, got nan": lambda: peerlane.communicator.open(timeout=float("nan")),
                        "wait_timeout: expected a number of seconds below 3e10, got inf": lambda: peerlane.triggered.open(wait_timeout=float("inf")),
                        "rank: 2147483648 is not from 0": lambda: peerlane.communicator.open(rank=1 << 31)}.items():
        refused(ValueError, "^" + re.escape(words), call)


# ---- asyncio -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stuck():
    """(x, out, release): copies from x wait until release()."""
    gc.collect()
    gc.disable()  # arrays of earlier tests, freed now, would wait for the stream
    word, stream = testing.zeros(1, np.uint32), testing.Stream()
    x, out = testing.zeros(1 << 20, np.uint8, stream=stream), testing.zeros(1 << 20, np.uint8)
    peerlane.copy_async(out, x).wait()  # what the first copy opens would wait, too
    m = peerlane.map(word)
    testing.driver().call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream.ptr), ctypes.c_uint64(word.address), ctypes.c_uint(1), ctypes.c_uint(0))
    yield x, out, lambda: m.write(0, 1)
    m[0] = 1
    stream.synchronize()
    gc.enable()


def test_every_way_of_asyncio():
    def begin(i):
        host = np.full(1 << 16, i, np.uint8)
        x = testing.empty(1 << 16, np.uint8)
        made.append((i, x))
        return peerlane.copy_async(x, host)

    async def run():
        await asyncio.create_task(begin(0))
        await asyncio.ensure_future(begin(1))
        await asyncio.gather(begin(2), begin(3))
        await asyncio.wait_for(begin(4), 30)
        await asyncio.shield(begin(5))
        done, _ = await asyncio.wait([asyncio.create_task(begin(6))])
        assert [each.result() for each in done] == [(-1, 0, 1 << 16)]
        for each in asyncio.as_completed([begin(7)]):
            await each
        if sys.version_info >= (3, 11):
            async with asyncio.TaskGroup() as group:
                group.create_task(begin(8))
        await begin(9)

    made = []
    asyncio.run(run())
    asyncio.run(begin(10))
    assert len(made) >= 10
    for i, x in made:
        assert (x.get() == i).all()


def test_a_task_is_cancelled_and_the_copy_goes_on(stuck):
    x, out, release = stuck

    async def run():
        copying = asyncio.create_task(peerlane.copy_async(out, x))
        await asyncio.sleep(0.01)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        del copying
        begin = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(peerlane.copy_async(out, x), 0.05)
        assert time.monotonic() - begin < 20  # the loop was not held by the end of the completion
        release()

    asyncio.run(run())
    end = peerlane.copy_async(out, x)
    end.wait()
    assert end.done()


def test_a_copy_has_a_descriptor_to_sleep_on(stuck):
    x, out, release = stuck
    end = peerlane.copy_async(out, x)
    assert end.has_descriptor
    waiting = select.poll()
    own = os.dup(end.descriptor())
    waiting.register(own, select.POLLIN)
    release()
    begin = time.monotonic()
    while not end.done():
        assert time.monotonic() - begin < 20
        waiting.poll(20_000)
    assert end.wait() == (-1, 0, 1 << 20)
    os.close(own)
    with pytest.raises(peerlane.Error, match="ended"):
        end.descriptor()


def test_a_loop_sleeps_while_a_copy_is_under_way(stuck):
    x, out, release = stuck
    naps = []

    async def run():
        loop = asyncio.get_running_loop()
        added = loop.add_reader
        loop.add_reader = lambda *given: (naps.append(given[0]), added(*given))[1]
        copying = asyncio.create_task(peerlane.copy_async(out, x))
        await asyncio.sleep(0.2)
        assert not copying.done()
        release()
        await asyncio.wait_for(copying, 20)

    asyncio.run(run())
    assert 1 <= len(naps) < 100, "it slept on a descriptor and did not poll"


def test_awaited_in_a_task_and_asked_by_another(stuck):
    x, out, release = stuck

    async def run():
        end = peerlane.copy_async(out, x)
        waiter = asyncio.create_task(end)
        await asyncio.sleep(0.01)
        assert not end.done() and "under way" in repr(end)
        release()
        await waiter
        assert end.done() and repr(end) == "<peerlane.Operation done>"
        await end  # again: at once

    asyncio.run(run())


# ---- What objects show ---------------------------------------------------------------------------------------------------


def test_reprs(numbers, tmp_path):
    x = testing.array(numbers)
    assert repr(x).startswith("<peerlane.testing.DeviceArray float32[6, 8] at 0x")
    with peerlane.map(x) as m:
        assert repr(m).startswith("<peerlane.Mapping float32[6, 8] at 0x")
        shown = m._repr_html_()
        assert "<table>" in shown and "float32" in shown and "dmabuf" in shown
        assert repr(m.array).startswith("MappedArray([[ 0.,  1.,") and str(m.array[0]) == str(numbers[0])
    assert "closed" in repr(m) and "closed" in m._repr_html_()
    with peerlane.communicator.open(rendezvous=f"file:{tmp_path}", rank=0, size=1) as job:
        assert repr(job) == "<peerlane.communicator.Communicator rank 0 of 1>"
    assert repr(job) == "<peerlane.communicator.Communicator closed>"
    reply = peerlane.store.Reply(1, 2, 3, "unix", "logged")
    assert "version=1" in repr(reply) and "<td style='text-align:left'>unix</td>" in reply._repr_html_()


def test_the_machine_shows_itself():
    info, findings = peerlane.info(), peerlane.doctor()
    assert info["machine"]["simulated"] is True and "Peerlane Simulated GPU" in info._repr_html_()
    assert findings[0]["level"] in ("ok", "note", "BLOCKER") and "usable mapping backends: dmabuf" in str(findings)
    assert "<table>" in findings._repr_html_() and "mapping" in findings._repr_html_()


# ---- Imports -------------------------------------------------------------------------------------------------------------

AGAIN = """
import sys
from peerlane import communicator, store, testing
import peerlane as first
x = testing.zeros(4)
held, error_of_first = first.map(x), first.Error
for name in [name for name in sys.modules if name.split(".")[0] == "peerlane"]:
    del sys.modules[name]
import peerlane as second
from peerlane import communicator, store
assert second is not first and second.Error is not error_of_first
with second.map(x) as m:
    held[0] = 5
    assert m[0] == 5
second.copy_async(x, x).wait()
try:
    second.map((1, 4))
except second.Error as error:
    print("caught", error.errno)
try:
    store.open("/nobody.sock")
except second.Error as error:
    print("caught", error.errno)
"""
INTERPRETERS = """
import sys
import _testcapi
program = '''
try:
    import peerlane._core, peerlane._store
    print("loaded", hasattr(peerlane._core, "Operation"), hasattr(peerlane._store, "Store"))
except ImportError as error:
    print(error)
'''
if sys.argv[1] == "main first":
    exec(program)
for _ in range(2):
    _testcapi.run_in_subinterp(program)
exec(program)
"""


def test_imported_again():
    """After somebody (a test, a notebook) took the package out of sys.modules."""
    done = run("-W", "error", "-c", AGAIN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught 22\ncaught 2\n", "")


@pytest.mark.parametrize("order", ["main first", "main last"])
def test_one_interpreter_has_it(order):
    """Another one of the process gets an ImportError that says so, also when the first has ended."""
    pytest.importorskip("_testcapi", reason="this Python comes without _testcapi, which makes interpreters")
    done = run("-c", INTERPRETERS, order)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    loaded = ["loaded True" in line for line in lines]
    assert loaded == ([True, False, False, True] if order == "main first" else [True, False, False])
    assert all("another interpreter of this process" in line for line in lines if "loaded True" not in line)

MODULES = ["peerlane", *(f"peerlane.{each.name}" for each in pkgutil.iter_modules(peerlane.__path__)
                         if each.name not in ("report", "__main__", "_core", "_store", "_version"))]


@pytest.mark.parametrize("name", MODULES)
def test_a_star_takes_nothing_away(name):
    """`from ... import *` brings what __all__ names, all of it is there, and none of Python's own names is hidden."""
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    brought = {}
    exec(f"from {name} import *", brought)  # noqa: S102
    brought.pop("__builtins__")
    assert set(brought) == set(module.__all__)
    assert not set(brought) & set(dir(builtins)), "hides a name of Python's"


def test_map_and_open_are_there_by_name():
    assert callable(peerlane.map) and "map" in dir(peerlane)
    for module in (peerlane.communicator, peerlane.store, peerlane.triggered):
        assert callable(module.open) and "open" not in module.__all__


FIRST_USES = """
import importlib.abc, sys, threading, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            time.sleep(0.3)  # the other threads run meanwhile

sys.meta_path.insert(0, Slow())
from peerlane import _core

assert "numpy" not in sys.modules
threads = [threading.Thread(target=_core.look_at, args=(bytearray(8),)) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_the_first_use_by_several_threads():
    """The first array that is looked at imports NumPy, during which other threads may look at theirs; all waited for ever."""
    ended = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, timeout=60, check=False,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == 0, ended.stderr.decode()
