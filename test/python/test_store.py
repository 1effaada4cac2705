# SPDX-License-Identifier: Apache-2.0
"""peerlane.store against a server of its own: values of GPU tensors, conditions, searches, refusals."""

import asyncio
import copy
import errno
import os
import pickle
import select
import socket
import subprocess
import sys
import threading

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
    with pytest.raises(ValueError, match="'eternal' is not one of None, 'volatile', 'logged', 'durable'"):
        pool.put("layer0", x, durability="eternal")


def test_connections_are_neither_copied_nor_pickled(server):
    """As multiprocessing would: the message names the user's object, and what to do."""
    with peerlane.store.open(server) as store:
        pool = store.create_pool("pickled")
        with pool.watch() as watch:
            for each in (store, pool, watch):
                for take in (pickle.dumps, copy.copy, copy.deepcopy):
                    with pytest.raises(TypeError, match=f"{type(each).__name__}: .* open another one"):
                        take(each)
            assert pickle.loads(pickle.dumps(pool.put("key", b"value"))).value_bytes == 5
        store.delete_pool("pickled")


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
        pool.put(b"a\0b1", b"")
        assert pool.keys(b"a\0b") == [b"a\0b1"]  # searches look for any bytes
        pool.erase(b"a\0b1")
        with pytest.raises(TypeError, match="key: expected str or bytes, got int"):
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
        with pytest.raises(ValueError, match="eviction: 'fifo' is not one of 's3-fifo', 'lru'"):
            store.create_pool("other", cache=True, eviction="fifo")
        with pytest.raises(ValueError, match="cache_memory_bytes: -1"):
            store.create_pool("other", cache=True, cache_memory_bytes=-1)
        store.delete_pool("cache")


def test_many_keys_by_one_call(server, numbers):
    with peerlane.store.open(server) as store:
        pool = store.create_pool("many", durability="logged")
        arrays = {f"k{i:03}": testing.array(numbers + i) if i % 10 == 0 else numbers + i for i in range(300)}  # of the GPU, too
        put = pool.multi_put(arrays)
        assert len({reply.version for reply in put}) == 300 and {reply.durability for reply in put} == {"logged"}
        back = {key: np.zeros(numbers.shape, np.float32) for key in [*arrays, "nothing"]}
        got = pool.multi_get(back)
        assert [reply.version for reply in got[:300]] == [reply.version for reply in put]
        assert isinstance(got[300], peerlane.Error) and got[300].errno == errno.ENOENT and "b'nothing'" in str(got[300])
        assert all(np.array_equal(back[f"k{i:03}"], numbers + i) for i in range(300))
        assert pool.multi_exists(["k000", b"k299", "nothing"]) == [True, True, False] and pool.exists("k007") and not pool.exists("x")
        stats = pool.multi_stat(["k000", "nothing"])
        assert stats[0].version == put[0].version and stats[1].errno == errno.ENOENT
        views = pool.multi_read(["k001", "nothing", "k002"])
        assert np.array_equal(np.frombuffer(views[0], np.float32), (numbers + 1).ravel()) and views[1].errno == errno.ENOENT
        assert views[0].obj is views[2].obj  # one buffer, of which these are parts
        # Each has an outcome of its own.
        versions = {"k000": put[0].version, b"k001": put[1].version + 10**6}
        mixed = pool.multi_put([("k000", b"x"), ("k001", b"y"), ("new", b"z")], condition="absent", versions=versions)
        assert isinstance(mixed[0], peerlane.store.Reply) and mixed[1].errno == errno.ESTALE and mixed[2].value_bytes == 1
        assert [each.errno for each in pool.multi_put({"new": b"", "k000": b""}, condition="absent")] == [errno.EEXIST] * 2
        erased = pool.multi_erase(["new", "nothing", "k000"], versions={"k000": mixed[0].version})
        assert isinstance(erased[0], peerlane.store.Reply) and erased[1].errno == errno.ENOENT and not pool.exists("k000")
        assert pool.multi_put({}) == [] and pool.multi_get([]) == [] and pool.multi_read([]) == []
        all_or_nothing(pool)
        wrong_lists(pool)
        store.delete_pool("many")
    with pytest.raises(ValueError, match="closed"):
        pool.multi_exists(["k000"])


def all_or_nothing(pool):
    before = pool.multi_stat(["k010", "k011"])
    with pytest.raises(peerlane.Error) as told:
        pool.multi_put({"k010": b"1", "k011": b"2"}, versions={"k011": 1}, atomic=True)
    assert told.value.errno == errno.ESTALE and "k011" in told.value.strerror
    assert pool.multi_stat(["k010", "k011"]) == before
    done = pool.multi_put({"k010": b"1", "k011": b"2"}, versions={"k011": before[1].version}, atomic=True)
    assert bytes(pool.read("k010")) == b"1" and done[1].version > before[1].version
    assert [(each.value_bytes, each.moved_bytes) for each in done] == [(1, 1), (1, 1)]
    with pytest.raises(peerlane.Error) as told:
        pool.multi_erase(["k010", "nothing"], atomic=True)
    assert told.value.errno == errno.ENOENT and pool.exists("k010")
    pool.multi_erase(["k010", "k011"], atomic=True)
    assert pool.multi_exists(["k010", "k011"]) == [False, False]
    with pytest.raises(peerlane.Error) as told:
        pool.multi_put({"large": bytes(5 << 20)}, atomic=True)
    assert told.value.errno == errno.EMSGSIZE


def wrong_lists(pool):
    with pytest.raises(TypeError, match="keys: expected several keys, got one str"):
        pool.multi_erase("k012")
    with pytest.raises(ValueError, match="versions: b'other' is not one of the keys"):
        pool.multi_put({"k012": b""}, versions={"other": 1})
    with pytest.raises(ValueError, match="version: -1"):
        pool.multi_put({"k012": b""}, versions={"k012": -1})
    with pytest.raises(ValueError, match="read-only"):
        pool.multi_get({"k012": b"1234"})
    with pytest.raises(TypeError, match="atomic: expected True or False, got int"):
        pool.multi_put({"k012": b""}, atomic=1)
    with pytest.raises(TypeError, match="key: expected str or bytes, got int"):
        pool.multi_put([(5, b"")])
    for one in ([1, 2], "ab", [("k012",)]):
        with pytest.raises(TypeError, match="a dictionary or pairs"):
            pool.multi_put(one)
        with pytest.raises(TypeError, match="a dictionary or pairs"):
            pool.multi_get(one)
    with pytest.raises(ValueError, match="ttl: -1 s"):
        pool.multi_put({"k012": b""}, ttl=-1)


def test_keys_in_order(server):
    with peerlane.store.open(server) as store:
        pool = store.create_pool("order", durability="volatile")
        pool.multi_put({f"a{i:05}": bytes(i % 7) for i in range(2500)})
        pool.multi_put({"b": b"", "c\0d": b"1"})
        found = list(pool.scan("a"))  # three pages
        assert [one.key for one in found] == [b"a%05d" % i for i in range(2500)]
        assert all(one.value_bytes == i % 7 and one.version for i, one in enumerate(found))
        assert [one.key for one in pool.scan("a", after="a02497")] == [b"a02498", b"a02499"]
        assert [one.key for one in pool.scan(limit=2)] == [b"a00000", b"a00001"]
        assert len(list(pool.scan("a", limit=1700))) == 1700 and len(list(pool.scan(limit=1000))) == 1000
        assert [one.key for one in pool.scan(regex="^a0000[12]$")] == [b"a00001", b"a00002"]
        assert [one.key for one in pool.scan("c\0")] == [b"c\0d"] and not list(pool.scan("none"))

        async def pages():
            return [one.key async for one in pool.scan_async("a", limit=1500)]

        assert asyncio.run(pages()) == [b"a%05d" % i for i in range(1500)]
        assert pool.erase_prefix("a00") == 1000 and pool.erase_prefix("a00") == 0
        assert asyncio.run(pool.erase_prefix_async("a")) == 1500 and pool.keys() == [b"b", b"c\0d"]
        with pytest.raises(peerlane.Error):
            pool.erase_prefix("")
        with pytest.raises(ValueError, match="limit: -1"):
            next(pool.scan(limit=-1))
        store.delete_pool("order")


def test_many_keys_without_blocking_the_loop(server, numbers):
    async def several(pool):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        values = [{f"{part}-{i}": np.full(500, i, np.float32) for i in range(400)} for part in range(4)]
        await asyncio.gather(*(pool.multi_put_async(part) for part in values))
        back = [{key: np.zeros(500, np.float32) for key in part} for part in values]
        await asyncio.gather(*(pool.multi_get_async(part) for part in back))
        assert all(np.array_equal(part[key], values[i][key]) for i, part in enumerate(back) for key in part) and ticks > 1
        views = await pool.multi_read_async(["0-0", "0-1"])
        assert np.frombuffer(views[1], np.float32)[0] == 1
        assert await pool.multi_exists_async(["0-0", "nothing"]) == [True, False]
        erased = await pool.multi_erase_async(["0-0", "nothing"])
        assert erased[0].version and erased[1].errno == errno.ENOENT
        with pytest.raises(peerlane.Error) as told:
            await pool.multi_put_async({"0-1": b""}, condition="absent", atomic=True)
        assert told.value.errno == errno.EEXIST
        ticking.cancel()

    with peerlane.store.open(server) as store:
        asyncio.run(several(store.create_pool("several", durability="logged")))
        store.delete_pool("several")


def test_changes_are_told(server):
    with peerlane.store.open(server) as store, peerlane.store.open(server) as other:
        pool = store.create_pool("watched", durability="volatile")
        theirs = other.open_pool("watched")
        with pool.watch("a") as watch, pool.watch(key="a2") as of_one:
            first = theirs.put("a1", b"123")
            theirs.put("b", b"")
            second = theirs.put("a2", b"")
            theirs.erase("a1")
            told = [watch.next(10) for _ in range(3)]
            assert [(one.kind, one.key, one.version, one.value_bytes) for one in told] == [
                ("put", b"a1", first.version, 3), ("put", b"a2", second.version, 0), ("erased", b"a1", first.version, 0)]
            assert of_one.next(10) == told[1]
            with pytest.raises(peerlane.Timeout):
                watch.next(0.05)
            with pytest.raises(ValueError, match="one of them"):
                pool.watch("a", key="b")
            timer = threading.Timer(0.2, watch.close)
            timer.start()
            assert list(watch) == []  # it ends when it is closed
            timer.join()
            with pytest.raises(peerlane.Error) as closed:
                watch.next()
            assert closed.value.errno == errno.ECANCELED
        asyncio.run(awaited(pool, theirs))
        forgotten = pool.watch()
    assert not forgotten._watch.is_open  # the store closed it
    with peerlane.store.open(server) as store:
        store.delete_pool("watched")


async def awaited(pool, theirs):
    seen = []

    async def follow(watch):
        async for change in watch:
            seen.append(change.key)

    async with pool.watch() as watch:
        task = asyncio.create_task(follow(watch))
        await asyncio.sleep(0.05)
        for i in range(3):
            await theirs.put_async(f"c{i}", b"")
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        task.cancel()  # what its thread takes meanwhile is not lost
        theirs.put("c3", b"")
        assert (await anext(aiter(watch))).key == b"c3"
        task = asyncio.create_task(follow(watch))
        await asyncio.sleep(0.05)
        watch.close()
        await asyncio.wait_for(task, 10)
    assert seen == [b"c0", b"c1", b"c2"]


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


def reserve_port():
    """A socket whose port nobody else is given; etcd can bind it all the same, because it sets SO_REUSEADDR too."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def test_a_cluster_is_one_store(tmp_path):
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("libpeerlane_store.so.0 was not built")
    if not os.access("/usr/bin/etcd", os.X_OK):
        pytest.skip("/usr/bin/etcd is missing: apt-get install etcd-server")
    ports = [reserve_port() for _ in range(2)]
    url, peers = (f"http://127.0.0.1:{port.getsockname()[1]}" for port in ports)
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
        for port in ports:
            port.close()


def test_nobody_serves(tmp_path):
    with pytest.raises(peerlane.Error) as told:
        peerlane.store.open(str(tmp_path / "none.sock"))
    assert told.value.errno in (errno.ENOENT, errno.ECONNREFUSED)


AT_THE_END = """
import sys, threading, time
from peerlane import store

pool = store.open(sys.argv[1]).create_pool(sys.argv[2])
pool.put("k", bytes(100))
watched = pool.watch("")
calls = {"put": lambda: pool.put("k", bytes(100)), "read": lambda: pool.read("k"), "many": lambda: pool.multi_read(["k"] * 50), "watch": lambda: next(iter(watched))}

def loop():
    while True:
        calls[sys.argv[2]]()

for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("call", ["put", "read", "many", "watch"])
def test_the_interpreter_ends_beside_calls(server, call):
    """The store of a thread that sleeps for good is not waited for. What threads raise then is theirs: the store is closed."""
    ended = subprocess.run([sys.executable, "-c", AT_THE_END, server, call], capture_output=True, timeout=100, check=False,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == 0, ended.stderr.decode()
    assert "terminate" not in ended.stderr.decode()


def test_a_thread_opens_watches_while_another_one_closes(server):
    """close() ends watches that were opened beside it, too; it was refused because of them, and the connection stayed for good."""
    for turn in range(30):
        store = peerlane.store.open(server)
        pool = store.create_pool(f"watched {turn}")
        others = []

        def open_watches(pool=pool, others=others):
            try:
                while True:
                    others.append(pool.watch())
            except (peerlane.Error, ValueError) as told:
                others.append(told)

        threads = [threading.Thread(target=open_watches) for _ in range(2)]
        closers = [threading.Thread(target=store.close) for _ in range(2)]
        for each in threads:
            each.start()
        while not others:
            pass
        for each in closers:
            each.start()
        store.close()
        for each in closers + threads:
            each.join(60)
        assert repr(store) == "<peerlane.store.Store closed>"
        # So is each watch, also those that were being opened.
        assert {repr(each) for each in others if isinstance(each, peerlane.store.Watch)} <= {"<peerlane.store.Watch closed>"}
        with peerlane.store.open(server) as again:
            again.delete_pool(f"watched {turn}")


def test_a_refused_close_leaves_the_store_open(server):
    """The compiled half: a watch keeps its connection, which is closed when the watch is."""
    with peerlane.store.open(server) as store:
        pool = store.create_pool("refused")
        watch = store._connection.watch(pool._number, b"", False)
        with pytest.raises(peerlane.Error) as told:
            store._connection.close()
        assert told.value.errno == errno.EBUSY and store._connection.is_open
        assert pool.put("k", b"1").value_bytes == 1
        watch.close()
        store.delete_pool("refused")
        store._connection.close()
        assert not store._connection.is_open


def test_a_function_does_not_close_the_store_of_its_operation(server):
    """The thread that calls it may be the store's own: it ended the process."""
    with peerlane.store.open(server) as store:
        pool = store.create_pool("in a function")
        told = []

        def close(_):
            try:
                store.close()
            except peerlane.Error as refused:
                told.append(refused.errno)

        put = pool.begin_put("k", b"1" * 100_000)
        put.then(close)
        put.wait()
        assert told == [errno.EDEADLK]
        assert len(pool.read("k")) == 100_000
        store.delete_pool("in a function")
