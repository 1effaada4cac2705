# SPDX-License-Identifier: Apache-2.0
"""peerlane.store against a server of its own: values of GPU tensors, conditions, searches, refusals."""

import asyncio
import errno
import os
import select
import socket
import subprocess

import numpy as np
import peerlane
import pytest
from peerlane import _native, testing


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A socket at which a store serves."""
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("libpeerlane_store.so.0 was not built")
    data = tmp_path_factory.mktemp("store")
    process = subprocess.Popen([_native.program(), "store", "serve", "--data", data, "--listen", "none", "--arena", "64M", "--chunk",
                                "64M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)  # its first line comes when it serves
    assert ready, "the server says nothing"
    yield str(data / "store.sock")
    process.terminate()
    process.wait(30)


def test_values(server, numbers):
    x, y = testing.array(numbers), testing.zeros(numbers.shape)
    with peerlane.store.open(server) as store:
        pool = store.create_pool("values", durability="logged")
        put = pool.put("layer0", x)
        assert (put.value_bytes, put.durability) == (192, "logged") and put.version > 0 and put.path
        got = pool.get("layer0", y)
        assert np.array_equal(y.get(), numbers) and got.version == put.version and got.moved_bytes == 192
        part = np.zeros(100, np.float32)
        assert pool.get(b"layer0", part, offset=4, verify=True).moved_bytes == 188
        assert np.array_equal(part[:47], numbers.ravel()[1:]) and not part[47:].any()
        pool.put("layer1", b"bytes", durability="volatile")
        assert pool.keys() == [b"layer0", b"layer1"] and pool.keys("layer1") == [b"layer1"]
        assert pool.stat("layer1").value_bytes == 5
        pool.erase("layer1")
        pool.sync()
        assert store.open_pool("values").keys() == [b"layer0"]
        refusals(store, pool, x)
        store.delete_pool("values")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        pool.keys()


def refusals(store, pool, x):
    for number, call in [(errno.EEXIST, lambda: pool.put("layer0", x, condition="absent")),
                         (errno.ENOENT, lambda: pool.put("other", x, condition="present")),
                         (errno.ENOENT, lambda: pool.get("other", x)), (errno.ENXIO, lambda: store.open_pool("nowhere"))]:
        with pytest.raises(peerlane.Error) as told:
            call()
        assert told.value.errno == number and told.value.strerror
    with pytest.raises(ValueError, match="gaps"):
        pool.put("layer0", x[:, 1])
    with pytest.raises(ValueError, match="read-only"):
        pool.get("layer0", b"1234")
    with pytest.raises(ValueError, match="'eternal' is none of None, 'volatile', 'logged', 'durable'"):
        pool.put("layer0", x, durability="eternal")


def test_requests_that_go_on(server, numbers):
    arrays = [testing.array(numbers + i) for i in range(40)]
    back = [testing.zeros(numbers.shape) for _ in arrays]

    async def both_ways(pool):
        replies = await asyncio.gather(*(pool.put_async(f"k{i}", x, durability="volatile") for i, x in enumerate(arrays)))
        assert len({reply.version for reply in replies}) == 40 and {reply.durability for reply in replies} == {"volatile"}
        got = await asyncio.gather(*(asyncio.create_task(pool.get_async(f"k{i}", y)) for i, y in enumerate(back)))
        assert [reply.version for reply in got] == [reply.version for reply in replies]
        with pytest.raises(peerlane.Error) as told:
            await pool.get_async("nothing", back[0])
        assert told.value.errno == errno.ENOENT and told.value.strerror

    with peerlane.store.open(server) as store:
        pool = store.create_pool("going on")
        asyncio.run(both_ways(pool))
        for i, y in enumerate(back):
            assert np.array_equal(y.get(), numbers + i)
        # Beside a copy, in one wait.
        spare = testing.zeros(numbers.shape)
        begun = [pool.begin_get("k7", spare), peerlane.copy_async(back[1], numbers), pool.begin_put("k0", numbers)]
        peerlane.wait_all(begun, 30)
        assert np.array_equal(spare.get(), numbers + 7) and begun[0].info()["moved_bytes"] == 192
        assert not begun[0].can_cancel and begun[2].info()["version"] == pool.stat("k0").version
        # Dropped at once: its end is waited for, and its array stays until then.
        pool.begin_put("dropped", numbers * 2)
        assert np.array_equal(np.frombuffer(pool.read("dropped"), np.float32), (numbers * 2).ravel())
        store.delete_pool("going on")


def test_versions_and_whole_values(server, numbers):
    with peerlane.store.open(server) as store:
        pool = store.create_pool("versions", durability="volatile")
        first = pool.put("k", numbers)
        second = pool.put("k", b"second", version=first.version)
        for call in (lambda: pool.put("k", b"third", version=first.version), lambda: pool.erase("k", version=first.version),
                     lambda: pool.begin_put("k", b"third", version=first.version).wait(30)):
            with pytest.raises(peerlane.Error) as told:
                call()
            assert told.value.errno == errno.ESTALE
        with pytest.raises(ValueError, match="one of them"):
            pool.put("k", b"third", condition="present", version=second.version)
        value = pool.read("k", verify=True)
        assert value == b"second" and not value.readonly
        pool.put("empty", b"")
        assert pool.read("empty") == b""
        assert pool.keys(regex="^em") == [b"empty"]
        with pytest.raises(ValueError, match="zero byte"):
            pool.keys(b"a\0b")
        with pytest.raises(TypeError, match="key: int"):
            pool.put(5, b"")
        pool.erase("k", version=second.version)
        assert pool.keys() == [b"empty"]
        store.delete_pool("versions")


def test_a_pool_that_is_a_cache(server):
    with peerlane.store.open(server) as store:
        pool = store.create_pool("cache", cache=True, cache_memory_bytes=4 << 20, eviction="lru")
        for i in range(12):
            pool.put(f"k{i}", bytes(1 << 20))
        assert 1 <= len(pool.keys()) <= 4 and pool.stat("k11").value_bytes == 1 << 20
        with pytest.raises(peerlane.Error) as told:
            pool.get("k0", bytearray(1))
        assert told.value.errno == errno.ENOENT
        pool.put("short", b"lived", ttl=0.05)
        while "short".encode() in pool.keys():
            pass
        with pytest.raises(ValueError, match="eviction: 'fifo' is none of 's3-fifo', 'lru'"):
            store.create_pool("other", cache=True, eviction="fifo")
        with pytest.raises(ValueError, match="cache_memory_bytes: -1"):
            store.create_pool("other", cache=True, cache_memory_bytes=-1)
        store.delete_pool("cache")


def test_closing_ends_what_is_under_way(server):
    store = peerlane.store.open(server)
    pool = store.create_pool("closing", durability="volatile")
    begun = [pool.begin_put(f"k{i}", bytes(1 << 20)) for i in range(8)]
    store.close()
    for one in begun:
        try:
            one.wait(30)
        except peerlane.Error as told:
            assert told.errno in (errno.ECANCELED, errno.EINVAL)
    with pytest.raises(ValueError, match="the store is closed"):
        pool.begin_get("k0", bytearray(4))
    store.close()
    with peerlane.store.open(server) as again:  # where the same bytes can be put
        pool = again.open_pool("closing")
        assert pool.put("k0", bytes(1 << 20)).value_bytes == 1 << 20


def serve(data, *more):
    """A server that serves."""
    process = subprocess.Popen([_native.program(), "store", "serve", "--data", data, "--arena", "64M", "--chunk", "64M", *more],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "the server says nothing"
    return process


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def test_a_cluster_is_one_store(tmp_path):
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("libpeerlane_store.so.0 was not built")
    if not os.access("/usr/bin/etcd", os.X_OK):
        pytest.skip("/usr/bin/etcd is missing: apt-get install etcd-server")
    url, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with open(tmp_path / "etcd.log", "wb") as log:
        running = [subprocess.Popen(["/usr/bin/etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", url,
                                     "--advertise-client-urls", url, "--listen-peer-urls", peers, "--initial-advertise-peer-urls",
                                     peers, "--initial-cluster", f"default={peers}"], stdout=log, stderr=log)]
    try:
        running += [serve(tmp_path / name, "--listen", "127.0.0.1:0", "--cluster", url, "--name", name,
                          "--admins", f"uid:{os.geteuid()},tcp") for name in ("a", "b")]
        with peerlane.store.open(str(tmp_path / "a" / "store.sock")) as store:
            pool = store.create_pool("values", durability="logged", copies=2)
            arrays = {f"k{i}": testing.array(np.full(20_000, i, np.float32)) for i in range(12)}
            for key, array in arrays.items():
                assert pool.put(key, array).path == "shared memory"
            back = testing.zeros((20_000,))
            for i, key in enumerate(arrays):
                assert pool.get(key, back).path == "shared memory" and (back.get() == i).all()
            assert len(pool.keys()) == 12
            pool.erase("k3")
            with pytest.raises(peerlane.Error) as told:
                pool.stat("k3")
            assert told.value.errno == errno.ENOENT
            # One of them goes: the other one has all.
            running.pop().terminate()
            for i, key in enumerate(arrays):
                if key != "k3":
                    pool.get(key, back)
                    assert (back.get() == i).all()
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)


def test_nobody_serves(tmp_path):
    with pytest.raises(peerlane.Error) as told:
        peerlane.store.open(str(tmp_path / "none.sock"))
    assert told.value.errno in (errno.ENOENT, errno.ECONNREFUSED)
