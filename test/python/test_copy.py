# SPDX-License-Identifier: Apache-2.0
"""copy, copy_async and fill: every direction and stride, order with streams, asyncio, threads."""

import array
import asyncio
import ctypes
import mmap
import threading
import time

import numpy as np
import peerlane
import pytest
from peerlane import testing


@pytest.mark.parametrize("size", [1, 100, 4096, 1 << 20, (3 << 20) + 7])
def test_there_and_back(size):
    host = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    x, y, back = testing.empty(size, np.uint8), testing.empty(size, np.uint8), np.empty_like(host)
    peerlane.copy(x, host)
    peerlane.copy(y, x)
    peerlane.copy(back, y)
    assert np.array_equal(back, host) and np.array_equal(x.get(), host)


def test_between_devices(numbers):
    x, y = testing.array(numbers), testing.zeros(numbers.shape, device=1)
    peerlane.copy(y, x)
    assert np.array_equal(y.get(), numbers)


INDICES = [np.s_[::2], np.s_[::-1], np.s_[:, 1:7], np.s_[:, ::3], np.s_[::-2, ::-1], np.s_[3], np.s_[2, 2, ...], np.s_[1:1]]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("which", ["dst", "src", "both"])
def test_strides(numbers, index, which):
    """Gaps on the device, on the host, or on both sides; what lies between stays as it was."""
    shape = numbers[index].shape
    values = np.arange(1000, 1000 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    x, host = testing.array(numbers), numbers.copy()
    if which == "dst":
        peerlane.copy(x[index], values)
        host[index] = values
        assert np.array_equal(x.get(), host)
        return
    if which == "src":
        out = np.empty(shape, np.float32)
        peerlane.copy(out, x[index])
        assert np.array_equal(out, numbers[index])
        return
    out = np.zeros_like(numbers)
    peerlane.copy(out[index], x[index])
    host[:] = 0
    host[index] = numbers[index]
    assert np.array_equal(out, host)


def test_transposed_and_three_dimensions():
    values = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)
    x = testing.array(values)
    for axes in [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)]:
        out = np.empty(values.transpose(axes).shape, np.int16)
        part = testing.DeviceArray(x.memory, x.address, out.shape, values.transpose(axes).strides, x.dtype, 0)
        peerlane.copy(out, part)
        assert np.array_equal(out, values.transpose(axes))


def test_buffers_and_pairs(numbers):
    x = testing.zeros(8, np.uint8)
    peerlane.copy(x, b"peerlane")
    out = bytearray(8)
    peerlane.copy(out, (x.address, 8))
    assert out == b"peerlane" == x.get().tobytes()
    rows = ((ctypes.c_ubyte * 4) * 2)()  # a buffer that names no strides
    peerlane.copy(rows, testing.array(np.frombuffer(b"peerlane", np.uint8).reshape(2, 4)))
    assert bytes(rows) == b"peerlane"
    with pytest.raises(ValueError, match="read-only"):
        peerlane.copy(b"12345678", x)
    peerlane.copy(numbers[0], numbers[1])  # both on the host
    assert np.array_equal(numbers[0], numbers[1])


def test_mappings_and_dlpack(numbers, only_dlpack):
    x = testing.array(numbers)
    with peerlane.map(x[1:3]) as m:
        out = np.empty((2, 8), np.float32)
        peerlane.copy(out, m)
        assert np.array_equal(out, numbers[1:3])
    peerlane.copy(only_dlpack(x), numbers + 1)
    assert np.array_equal(x.get(), numbers + 1)


def test_what_does_not_fit():
    x = testing.zeros((2, 3))
    for wrong in (np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros((2, 3), np.float64), np.zeros((2, 3), np.int32)):
        with pytest.raises(ValueError, match=r"the destination is float32\[2, 3\]"):
            peerlane.copy(x, wrong)
    with pytest.raises(TypeError, match="other byte order"):
        peerlane.copy(x, np.zeros((2, 3), ">f4"))
    with pytest.raises(TypeError, match="expected a stream, got "):
        peerlane.copy(x, np.zeros((2, 3), np.float32), after=1.5)
    with pytest.raises(ValueError, match="after"):
        peerlane.copy(x, np.zeros((2, 3), np.float32), after="now")
    same = testing.DeviceArray(x.memory, x.address, (2, 3), (0, 4), x.dtype, 0)
    with pytest.raises(peerlane.Error, match="share memory"):
        peerlane.copy(same, np.zeros((2, 3), np.float32))
    x.memory.free()
    with pytest.raises(peerlane.Error):
        peerlane.copy(x, np.zeros((2, 3), np.float32))


def test_numpy_arrays_that_change():
    """Nothing is remembered of an array but its dtype: resized, reshaped, retyped and locked arrays are described as they are now."""
    x, host = testing.array(np.arange(6, dtype=np.float32)), np.zeros(2, np.float32)
    peerlane.copy(host, x[:2])
    host.resize(6, refcheck=False)
    peerlane.copy(host, x)
    assert list(host) == [0, 1, 2, 3, 4, 5]
    host.shape = (2, 3)
    with pytest.raises(ValueError, match=r"float32\[2, 3\]"):
        peerlane.copy(host, x)
    host.shape = (6,)
    bits = host.view(np.uint32)
    with pytest.raises(ValueError, match="uint32"):
        peerlane.copy(bits, x)
    host.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        peerlane.copy(host, x)
    host.setflags(write=True)
    with pytest.raises(TypeError, match="other byte order"):
        peerlane.copy(host.view(">f4"), x)
    pairs = np.zeros(3, [("a", "f4"), ("b", "i4")])
    with pytest.raises(ValueError, match=r"V8\[3\]"):
        peerlane.copy(pairs, x)


def block(stream):
    """Holds the stream until the word that is returned becomes 1."""
    word = testing.zeros(1, np.uint32)
    testing.driver().call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream.ptr), ctypes.c_uint64(word.address),
                          ctypes.c_uint(1), ctypes.c_uint(0))
    return word


def memset(stream, x, value):
    testing.driver().call("cuMemsetD8Async", ctypes.c_uint64(x.address), ctypes.c_ubyte(value), ctypes.c_size_t(x.nbytes),
                          ctypes.c_void_p(stream.ptr))


def test_copies_come_after_what_the_library_has_queued():
    """`auto` follows the stream that __cuda_array_interface__ names, a given stream is followed, None does not wait."""
    stream = testing.Stream()
    x = testing.zeros(256, np.uint8, stream=stream)
    plain = testing.DeviceArray(x.memory, x.address, x.shape, x.strides, x.dtype, 0)
    gates = []  # kept: freeing memory waits for the device
    for source, after in [(x, "auto"), (plain, stream), (plain, stream.ptr)]:
        peerlane.fill(plain, 0, after=None)
        gates.append(block(stream))
        memset(stream, x, 7)
        out = np.empty(256, np.uint8)
        peerlane.copy(out, plain, after=None)
        assert (out == 0).all()
        copier = threading.Thread(target=peerlane.copy, args=(out, source), kwargs={"after": after})
        copier.start()
        assert not stream.is_done()
        peerlane.map(gates[-1]).write(0, 1)  # only if the copy waits without the GIL do we come here
        copier.join()
        assert (out == 7).all()


def test_asynchronous_copies_follow_a_stream():
    stream = testing.Stream()
    x = testing.zeros(1 << 16, np.uint8, stream=stream)
    gate = block(stream)
    memset(stream, x, 9)
    out = np.zeros(1 << 16, np.uint8)
    end = peerlane.copy_async(out, x)
    assert not end.done()
    peerlane.map(gate).write(0, 1)
    end.wait()
    assert end.done() and (out == 9).all()


def test_streams_follow_asynchronous_copies(numbers):
    stream = testing.Stream()
    x, y = testing.zeros(numbers.shape), testing.zeros(numbers.shape)
    end = peerlane.copy_async(x, numbers, after=None)
    end.make_wait(stream)
    testing.driver().call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(y.address), ctypes.c_uint64(x.address),
                          ctypes.c_size_t(x.nbytes), ctypes.c_void_p(stream.ptr))
    stream.synchronize()
    assert np.array_equal(y.get(), numbers)
    end.wait()


def test_asyncio():
    async def many():
        hosts = [np.full(1 << 18, i, np.uint8) for i in range(8)]
        devices = [testing.empty(1 << 18, np.uint8) for _ in hosts]
        ends = [peerlane.copy_async(x, host) for x, host in zip(devices, hosts)]
        await asyncio.gather(*(wait(end) for end in ends))
        return devices

    async def wait(end):
        await end

    for i, x in enumerate(asyncio.run(many())):
        assert (x.get() == i).all()


def test_asyncio_goes_on_while_a_copy_is_stuck():
    async def run():
        stream = testing.Stream()
        x = testing.zeros(1 << 16, np.uint8, stream=stream)
        gate = block(stream)
        end = peerlane.copy_async(np.empty(1 << 16, np.uint8), x)

        async def open_the_gate():
            for _ in range(200):  # more turns than the waiter polls: it sits in a thread by then
                await asyncio.sleep(0)
            peerlane.map(gate).write(0, 1)

        await asyncio.gather(asyncio.ensure_future(wait(end)), open_the_gate())

    async def wait(end):
        await end

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("wait", (peerlane.wait_all, peerlane.wait_any))
def test_waits_for_several_let_a_function_have_the_interpreter(wait):
    begun, ended = threading.Event(), []

    def function(error):
        begun.set()
        time.sleep(0.05)  # another thread has the GIL meanwhile, and waits with it
        ended.append(error)

    stream = testing.Stream()
    x = testing.zeros(1 << 16, np.uint8, stream=stream)
    gate = block(stream)
    end = peerlane.copy_async(np.empty(1 << 16, np.uint8), x)
    end.then(function)
    peerlane.map(gate).write(0, 1)
    assert begun.wait(20)
    wait([end])
    assert ended == [0]


def test_a_dropped_completion_keeps_the_memory():
    out = np.zeros(1 << 20, np.uint8)
    peerlane.copy_async(out, testing.array(np.full(1 << 20, 3, np.uint8)))  # nobody holds anything
    assert (out == 3).all()


@pytest.mark.parametrize("dtype, value", [("u1", 7), ("f4", 0), ("f4", 1.5), ("i8", -5), ("c16", 2 + 1j), ("f2", 0.1), ("?", True)])
@pytest.mark.parametrize("size", [0, 3, 5000])
def test_fill(dtype, value, size):
    x = testing.zeros(size, dtype)
    peerlane.fill(x, value)
    assert np.array_equal(x.get(), np.full(size, value, dtype))


def test_fill_strided_large_and_on_the_host(numbers):
    x = testing.array(numbers)
    peerlane.fill(x[::2, 1:3], 2.5)
    numbers[::2, 1:3] = 2.5
    assert np.array_equal(x.get(), numbers)
    large = testing.zeros(((9 << 20) + 40) // 4)
    peerlane.fill(large, 1.25)
    assert (large.get() == 1.25).all()
    peerlane.fill(numbers, 3)
    assert (numbers == 3).all()
    with pytest.raises(OverflowError):
        peerlane.fill(testing.zeros(4, np.int8), 1000)


def test_threads(numbers):
    x = testing.array(np.zeros((8, 4096), np.int32))
    failures = []

    def work(row):
        mine = np.empty(4096, np.int32)
        for i in range(50):
            peerlane.copy(x[row], np.full(4096, row * 1000 + i, np.int32))
            peerlane.copy(mine, x[row])
            if not (mine == row * 1000 + i).all():
                failures.append((row, i))

    workers = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not failures


def test_explain():
    assert peerlane.explain("to_host", 4096).startswith("4 KiB to_host, pageable")
    with pytest.raises(ValueError, match="direction"):
        peerlane.explain("sideways", 1)


def mapped_file():
    memory = mmap.mmap(-1, 1 << 20)
    return memory, memory.close


def growing(memory):
    return lambda: (memory, lambda: memory.extend(b"x"))


@pytest.mark.parametrize("make", [growing(bytearray(1 << 20)), growing(array.array("B", bytes(1 << 20))), mapped_file],
                         ids=["bytearray", "array", "mmap"])
def test_memory_that_could_move_stays_while_it_is_used(make):
    """A buffer that was looked at and let go could be elsewhere when its bytes move, and a mapping that was closed nowhere."""
    memory, change = make()
    x = testing.zeros(1 << 20, np.uint8)
    for begin in (lambda: peerlane.copy_async(x, memory), lambda: peerlane.copy_async(memory, x)):
        copy = begin()
        with pytest.raises(BufferError):
            change()
        copy.wait()
        del copy
    peerlane.copy(x, memory)  # nothing of it stays
    change()


@pytest.mark.parametrize("objects", [np.zeros(4, "O"), np.zeros(4, [("a", "i4"), ("b", "O")]), (ctypes.py_object * 4)()],
                         ids=["array", "field", "ctypes"])
def test_python_objects_are_no_bytes(objects):
    """Their bytes are addresses of objects: whoever wrote others there would end Python."""
    x = testing.zeros(4, np.uint64)
    for call in (lambda: peerlane.copy(objects, x), lambda: peerlane.copy(x, objects), lambda: peerlane.copy_async(objects, x)):
        with pytest.raises(TypeError, match="Python objects"):
            call()


def test_a_field_may_have_any_name():
    host = np.ones(4, [("O", "i4"), ("Other", "f4")])
    x = testing.zeros(32, np.uint8)
    with peerlane.map(x) as m:
        m.write(..., host.view(np.uint8))
        back = np.zeros_like(host)
        peerlane.copy(back.view(np.uint8), x)
    assert (back == host).all()
