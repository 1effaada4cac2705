# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends whatever waits long: copies behind a stuck stream, completions, messages that nobody sends."""

import ctypes
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import peerlane
import pytest
from peerlane import _native, testing


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


def test_wait_signal(tmp_path):
    with peerlane.communicator.open(rendezvous=f"file:{tmp_path}", rank=0, size=1, host_only=True) as job:
        word = np.zeros(1, np.uint64)
        window = job.expose(word)
        for limit in (None, 60):
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                job.wait_signal(window.key, 0, 1, timeout=limit)
        with pytest.raises(peerlane.Timeout):
            job.wait_signal(window.key, 0, 1, timeout=0.2)
        word[0] = 3
        assert job.wait_signal(window.key, 0, 1, timeout=10) == 3
        window.close()


def test_barrier(tmp_path):
    """The next call continues the interrupted one."""
    code = ("import sys, peerlane; job = peerlane.communicator.open(rendezvous=sys.argv[1], rank=1, size=2, host_only=True); "
            "sys.stdin.readline(); job.barrier(60); job.barrier(60); job.close()")
    other = subprocess.Popen([sys.executable, "-c", code, f"file:{tmp_path}"], stdin=subprocess.PIPE, text=True)
    with peerlane.communicator.open(rendezvous=f"file:{tmp_path}", rank=0, size=2, host_only=True) as job:
        for limit in (None, 60):
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                job.barrier(limit)
        with pytest.raises(peerlane.Timeout):
            job.barrier(0.2)
        other.stdin.write("go\n")
        other.stdin.flush()
        job.barrier(60)
        job.barrier(60)
    assert other.wait(60) == 0


@pytest.fixture
def stopped_store(tmp_path):
    """A pool with one value, whose server is stopped, and the server's process."""
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("libpeerlane_store.so.0 was not built")
    server = subprocess.Popen([_native.program(), "store", "serve", "--data", tmp_path / "data", "--listen", "none", "--arena", "64M",
                               "--chunk", "64M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout is not None and select.select([server.stdout], [], [], 30)[0], "the server says nothing"
    with peerlane.store.open(str(tmp_path / "data" / "store.sock"), timeout=120) as store:
        pool = store.create_pool("p", durability="logged")
        pool.put("key", b"value")
        os.kill(server.pid, signal.SIGSTOP)
        yield store, pool, server
        os.kill(server.pid, signal.SIGCONT)
    server.terminate()
    server.wait(30)


def test_calls_of_the_store(stopped_store):
    """They end in time although the server does not answer, leave the caller's memory alone, and later calls work."""
    store, pool, server = stopped_store
    large, room = np.ones(1 << 20, np.uint8), np.zeros(100, np.uint8)
    calls = (lambda: pool.get("key", room), lambda: pool.put("other", large), lambda: pool.put("short", b"x"), lambda: pool.stat("key"),
             lambda: pool.multi_put({"a": b"1", "b": large}), lambda: pool.multi_get({f"k{i}": room for i in range(500)}),
             lambda: pool.multi_erase(["key", "a"]), lambda: pool.keys(), lambda: pool.erase_prefix("none"), pool.sync,
             lambda: store.open_pool("p"), lambda: store.create_pool("q"), lambda: pool.watch())
    for call in calls:
        interrupt_soon()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - begin < 30
    os.kill(server.pid, signal.SIGCONT)
    assert pool.multi_exists(["nothing"]) == [False]
    pool.put("key", b"again")
    assert bytes(pool.read("key")) == b"again" and not room.any()


def test_other_threads_calls_of_the_store_go_on(stopped_store):
    """A signal concerns the main thread."""
    _, pool, server = stopped_store
    values: list[bytes] = []
    thread = threading.Thread(target=lambda: values.append(bytes(pool.read("key"))))
    thread.start()
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        pool.stat("key")
    os.kill(server.pid, signal.SIGCONT)
    thread.join(60)
    assert values == [b"value"]
