# SPDX-License-Identifier: Apache-2.0
"""Calls while a stream is captured into a graph: those that would need the stream are refused before CUDA is touched, so the capture
stays whole; the others run beside it."""

import contextlib
import ctypes
import errno
import gc

import numpy as np
import peerlane
import pytest
from peerlane import testing

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


@pytest.fixture(autouse=True)
def no_collection():
    """Arrays of earlier tests, freed in the middle of this one, would spoil a capture, or wait for a stream that is held."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextlib.contextmanager
def captured(stream, mode=GLOBAL, target=None):
    """A capture that must end well, with the memset that was put into it."""
    cuda, x = testing.driver(), target or testing.zeros(64, np.uint8)
    cuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.ptr), mode)
    graph = ctypes.c_void_p()
    try:
        cuda.call("cuMemsetD8Async", ctypes.c_uint64(x.address), ctypes.c_ubyte(9), ctypes.c_size_t(64), ctypes.c_void_p(stream.ptr))
        yield
    finally:
        cuda.call("cuStreamEndCapture", ctypes.c_void_p(stream.ptr), ctypes.byref(graph))
    made = ctypes.c_void_p()
    cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
    cuda.call("cuGraphLaunch", made, ctypes.c_void_p(stream.ptr))
    stream.synchronize()
    assert (x.get() == 9).all()
    cuda.call("cuGraphExecDestroy", made)
    cuda.call("cuGraphDestroy", graph)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_what_would_wait_for_the_stream_is_refused(mode):
    stream = testing.Stream()
    x = testing.zeros(256, np.uint8, stream=stream)
    plain = testing.DeviceArray(x.memory, x.address, x.shape, x.strides, x.dtype, 0)
    host = np.zeros(256, np.uint8)
    with captured(stream, mode):
        for call in (lambda: peerlane.copy(host, x), lambda: peerlane.copy(x, host), lambda: peerlane.copy(plain, x),
                     lambda: peerlane.copy(host, plain, after=stream), lambda: peerlane.copy(host, plain, after=stream.ptr),
                     lambda: peerlane.copy_async(host, x), lambda: peerlane.copy_async(x, host, after=stream),
                     lambda: peerlane.fill(x, 1), lambda: peerlane.fill(x[::2], 1)):
            with pytest.raises(peerlane.Error, match="is being captured into a graph.*after=None") as told:
                call()
            assert told.value.errno == errno.EBUSY
    assert (host == 0).all() and (x.get() == 0).all()


def test_completions_do_not_enter_a_capture():
    """Work that a graph repeats cannot wait for a copy that is made once."""
    stream, busy = testing.Stream(), testing.Stream()
    x, gate, out = testing.zeros(1 << 20, np.uint8), testing.zeros(1, np.uint32), testing.zeros(1 << 20, np.uint8)
    target = testing.zeros(64, np.uint8)  # before the gate, as is what the first copy opens: allocating waits for all streams
    peerlane.copy_async(out, x).wait()
    testing.driver().call("cuStreamWaitValue32_v2", ctypes.c_void_p(busy.ptr), ctypes.c_uint64(gate.address), ctypes.c_uint(1), ctypes.c_uint(0))
    end = peerlane.copy_async(out, x, after=busy)
    with captured(stream, target=target):
        with pytest.raises(peerlane.Error, match="captur") as told:
            end.make_wait(stream)
        assert told.value.errno == errno.EBUSY
        peerlane.map(gate).write(0, 1)
        end.wait()


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
@pytest.mark.parametrize("size", [8, 5000, 300_000, 5 << 20])
def test_without_the_stream_copies_run_beside_a_capture(size, mode):
    """after=None, and arrays that name no stream: every way of copying, with whatever it has to open first."""
    stream = testing.Stream()
    x, y = testing.zeros(size, np.uint8, stream=stream), testing.zeros(size, np.uint8)
    host, back = np.full(size, 3, np.uint8), np.empty(size, np.uint8)
    with captured(stream, mode):
        peerlane.copy(x, host, after=None)
        peerlane.copy(y, x, after=None)
        peerlane.copy(back, y)
        peerlane.fill(y[:4], 4, after=None)
        peerlane.copy_async(y[4:], host[4:], after=None).wait()
        with peerlane.map(x) as m:
            assert m[1] == 3
            m[1] = 5
            assert m.read()[1] == 5
    assert (back == 3).all() and (y.get()[:4] == 4).all()


def test_the_legacy_stream_beside_a_capture():
    """Asking it would spoil the capture of a stream that waits for it."""
    cuda = testing.driver()
    cuda.enter(0)
    handle = ctypes.c_void_p()
    cuda.call("cuStreamCreate", ctypes.byref(handle), 0)  # a blocking stream
    stream = testing.Stream()
    stream.ptr, other = handle.value, stream.ptr
    host, x = np.zeros(16, np.uint8), testing.zeros(16, np.uint8)
    with captured(stream):
        for after in (0, 1):
            with pytest.raises(peerlane.Error, match="after=None") as told:
                peerlane.copy(host, x, after=after)
            assert told.value.errno == errno.EBUSY
        peerlane.copy(host, x, after=other)  # another one does not matter
    cuda.call("cuStreamDestroy_v2", ctypes.c_void_p(other))
