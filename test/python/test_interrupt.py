# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends whatever waits long: copies behind a stuck stream, completions, messages that nobody sends."""

import ctypes
import gc
import signal
import threading
import time

import numpy as np
import peerlane
import pytest
from peerlane import testing


@pytest.fixture(autouse=True)
def no_collection():
    """Arrays of earlier tests, freed in the middle of this one, would wait for a stream that is held."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def interrupt_soon():
    """SIGINT to the main thread, once it waits."""
    threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()


@pytest.fixture
def stuck():
    """A stream that waits until the test ends."""
    x, out = testing.zeros(1 << 20, np.uint8), testing.zeros(1 << 20, np.uint8)
    peerlane.copy_async(out, x).wait()  # what the first copy opens would wait for the stream, too
    word, stream = testing.zeros(1, np.uint32), testing.Stream()
    m = peerlane.map(word)
    testing.driver().call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream.ptr), ctypes.c_uint64(word.address), ctypes.c_uint(1), ctypes.c_uint(0))
    kept: list[object] = []  # completions: dropping one waits
    yield stream, x, out, kept
    m[0] = 1
    stream.synchronize()


def test_copies_and_completions(stuck):
    stream, x, out, kept = stuck
    end = peerlane.copy_async(out, x, after=stream)
    kept.append(end)
    for wait in (lambda: peerlane.copy(out, x, after=stream), lambda: peerlane.fill(out, 1, after=stream), end.wait):
        interrupt_soon()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - begin < 20
    assert not end.done()


def test_other_signals_are_handled_while_it_waits(stuck):
    """Their handlers run, and the wait goes on."""
    stream, x, out, _ = stuck
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)).start()
    interrupter = threading.Timer(0.8, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        peerlane.copy(out, x, after=stream)
    signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 1


def test_communicator(tmp_path):
    with peerlane.communicator.open(rendezvous=f"file:{tmp_path}", rank=0, size=1) as job:
        x = testing.zeros(4)
        request = job.irecv(0, x, tag=1)
        for wait in (lambda: job.recv(0, x, tag=2), request.wait, lambda: job.recv(0, x, tag=2, timeout=60)):
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                wait()
        assert not request.done()
        job.isend(0, testing.array([1.0] * 4, "float32"), tag=1).wait(10)
        assert request.wait(10) == (0, 1, 16) and (x.get() == 1).all()
        with pytest.raises(peerlane.Timeout):
            job.recv(0, x, tag=2, timeout=0.1)
        job.isend(0, x, tag=2)
        assert job.recv(0, x, tag=2, timeout=10) == (0, 2, 16)  # the ones that were given up did not take it
