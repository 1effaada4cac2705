# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache and LMCache over the store: what went out comes back byte for byte, half a page is no page, a store that is away is
a miss. Their own interface files are used where SGLANG_FILES and LMCACHE_FILES name them (kv_store_stand_in.py)."""

import asyncio
import types

import kv_store_stand_in as stand_in
import numpy as np
import peerlane
import pytest
from test_store import serve

LAYERS, TOKENS, PAGE = 3, 64, 4  # tokens of the host pool, tokens in a page


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    data = tmp_path_factory.mktemp("kv")
    process = serve(data, "--listen", "none")
    yield str(data / "store.sock")
    process.terminate()
    process.wait(30)


class HostPool:
    """SGLang's pool of host memory: keys and values apart, a page's tokens side by side (page_first) or each layer's (layer_first)."""

    page_size = PAGE

    def __init__(self, layout, seed):
        shape = (2, TOKENS // PAGE, PAGE, LAYERS, 8) if layout == "page_first" else (2, LAYERS, TOKENS // PAGE, PAGE, 8)
        self.layout = layout
        self.values = np.random.default_rng(seed).integers(0, 2**16, shape, np.uint16)

    def page(self, number):
        return self.values[:, number] if self.layout == "page_first" else self.values[:, :, number]

    def get_page_buffer_meta(self, indices):
        pieces = [part for i in range(0, len(indices), PAGE) for part in self._pieces(int(indices[i]) // PAGE)]
        return [part.ctypes.data for part in pieces], [part.nbytes for part in pieces]

    def _pieces(self, number):
        if self.layout == "page_first":
            return [self.values[0, number], self.values[1, number]]
        return [self.values[side, layer, number] for layer in range(LAYERS) for side in (0, 1)]


def config(**more):
    fixed = {"tp_rank": 0, "tp_size": 2, "pp_rank": 0, "pp_size": 1, "is_mla_model": False, "model_name": "org/model"}
    return types.SimpleNamespace(**{**fixed, **more})


def tokens(*pages):
    return np.concatenate([np.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


@pytest.fixture(params=["page_first", "layer_first"])
def hicache(request, address):
    """Makes storages over one pool, one a rank."""
    made = []
    with stand_in.installed("sglang") as module:
        def make(pieces=True, **more):
            extra = {"backend_name": "peerlane", "interface_v1": int(pieces), "peerlane_store": address, "peerlane_pool": f"sglang {request.param}"}
            made.append(module.PeerlaneHiCache(config(extra_config=extra, **more), {}))
            made[-1].register_mem_pool_host(HostPool(request.param, len(made)))
            return made[-1]

        yield make
        if made:
            made[0].clear()
        for each in made:
            each.close()


def test_pages_come_back(hicache):
    writer, reader = hicache(), hicache()
    keys = [f"page{i}" for i in range(9)]
    assert writer.batch_exists(keys) == 0 and writer.batch_get_v1(keys[:2], tokens(0, 1)) == [False, False]
    assert writer.batch_set_v1(keys, tokens(*range(9))) == [True] * 9
    assert reader.batch_exists([*keys, "other"]) == 9 and reader.exists("page8")
    places = [15, 3, 7, 0, 1, 2, 9, 8, 14]
    assert reader.batch_get_v1([*keys, "other"], tokens(*places, 5)) == [True] * 9 + [False]
    for i, place in enumerate(places):
        assert np.array_equal(reader.mem_pool_host.page(place), writer.mem_pool_host.page(i))
    # The same page again is no failure, and leaves what is there.
    assert reader.batch_set_v1(["page0"], tokens(5)) == [True]
    assert reader.batch_get_v1(["page0"], tokens(6)) == [True]
    assert np.array_equal(reader.mem_pool_host.page(6), writer.mem_pool_host.page(0))


def test_ranks_do_not_meet(hicache):
    first, second = hicache(tp_rank=0), hicache(tp_rank=1)
    assert first.batch_set_v1(["k"], tokens(0)) == [True]
    assert not second.exists("k") and second.batch_get_v1(["k"], tokens(0)) == [False]
    shared = [hicache(tp_rank=rank, is_mla_model=True, model_name="mla") for rank in (0, 1)]
    assert shared[0].batch_set_v1(["k"], tokens(0)) == [True] and shared[1].batch_get_v1(["k"], tokens(4)) == [True]


def test_half_a_page_is_none(hicache):
    cache = hicache()
    pool = cache.mem_pool_host
    del cache.mem_pool_host
    assert not cache.exists("k")  # before SGLang has given its host pool
    cache.register_mem_pool_host(pool)
    pieces = cache._pages(["k"], tokens(0))[0]
    cache._pool.begin_put(pieces[0][0], b"x" * pieces[0][2]).wait(30)
    assert not cache.exists("k")
    # A piece of another length: of a model whose layout changed.
    cache._pool.put(pieces[-1][0], b"short")
    assert cache.batch_get_v1(["k"], tokens(0)) == [False]


def test_single_tensors(hicache):
    cache = hicache(pieces=False)
    # NumPy's arrays have what is asked of a tensor here but for contiguous().
    value = types.SimpleNamespace(contiguous=lambda: np.arange(100, dtype=np.float32))
    assert not cache.exists("one") and cache.set("one", value) and cache.batch_set(["two"], [value])
    assert cache.exists("one") and cache.batch_exists(["one", "two", "three"]) == 2
    found = cache.batch_get(["one", "two", "three"], [np.zeros(100, np.float32), np.zeros(100, np.float32), np.zeros(100, np.float32)])
    assert np.array_equal(found[0], np.arange(100)) and np.array_equal(found[1], np.arange(100)) and found[2] is None
    assert cache.get("one", np.zeros(99, np.float32)) is None


def test_a_store_that_is_away_is_a_miss(address, tmp_path, caplog):
    data = tmp_path / "own"
    process = serve(data, "--listen", "none")
    with stand_in.installed("sglang") as module:
        extra = {"peerlane_store": str(data / "store.sock"), "peerlane_timeout": 0.5}
        cache = module.PeerlaneHiCache(config(extra_config=extra), {})
        cache.register_mem_pool_host(HostPool("page_first", 1))
        assert cache.batch_set_v1(["k"], tokens(0)) == [True]
        process.kill()
        process.wait(30)
        assert cache.batch_get_v1(["k"], tokens(1)) == [False] and not cache.exists("k") and cache.batch_set_v1(["j"], tokens(0)) == [False]
        told = [record for record in caplog.records if record.name == "peerlane.sglang"]
        assert len(told) == 1 and "the cache goes on without" in told[0].getMessage()
        cache.close()


def test_settings(address):
    with stand_in.installed("sglang") as module:
        for wrong, words in (({"peerlane_stor": address}, "peerlane_store?"), ({"peerlane_sleep": 1}, "There are peerlane_store, ")):
            with pytest.raises(ValueError, match="no such setting") as told:
                module.PeerlaneHiCache(config(extra_config=wrong), {})
            assert words in str(told.value)
        with pytest.raises(peerlane.Error, match="nobody"):
            module.PeerlaneHiCache(config(extra_config={"peerlane_store": "/tmp/nobody.sock"}), {})


# ---- LMCache -------------------------------------------------------------------------------------------------------------

SHAPE = (2, LAYERS, 16, 8)  # K and V, layers, tokens of a chunk, hidden size


class Chunk:
    """LMCache's memory object."""

    def __init__(self, shape=SHAPE, seed=None):
        self.shape, self.count = tuple(shape), 1
        words = int(np.prod(self.shape))
        self.raw_data = np.random.default_rng(seed).integers(0, 2**16, words, np.uint16) if seed else np.zeros(words, np.uint16)
        self.raw_data = self.raw_data.view(np.uint8)
        self.meta = types.SimpleNamespace(shape=self.shape, dtype=np.dtype(np.float16))

    @property
    def byte_array(self):
        return memoryview(self.raw_data)

    def ref_count_down(self):
        self.count -= 1

    def get_shapes(self):
        return [self.shape]

    def get_dtypes(self):
        return [KIND]

    def get_memory_format(self):
        return stand_in.Format.KV_2LTD


KIND = np.float16


class Memory:
    def __init__(self, extra):
        self.config = types.SimpleNamespace(extra_config=extra, use_layerwise=False)
        self.metadata = types.SimpleNamespace(get_shapes=lambda: [SHAPE], get_dtypes=lambda: [KIND], use_mla=False, chunk_size=16,
                                              get_num_groups=lambda: 1)
        self.made = []

    def allocate(self, shapes, dtypes, fmt):
        self.made.append(Chunk(shapes[0]))
        return self.made[-1]


class Key(str):
    __slots__ = ()

    def to_string(self):
        return str(self)


@pytest.fixture(params=[True, False], ids=["with shapes", "without"])
def connector(request, address):
    global KIND
    with stand_in.installed("lmcache") as module:
        if stand_in.LMCACHE_FILES:
            from lmcache.v1 import protocol
            KIND = next(iter(protocol.DTYPE_TO_INT))
        extra = {"save_chunk_meta": request.param, "remote_storage_plugin.peerlane.module_path": "peerlane.integrations.lmcache",
                 "remote_storage_plugin.peerlane.store": address, "remote_storage_plugin.peerlane.pool": f"lmcache {request.param}"}
        memory = Memory(extra)
        made = module.PeerlaneConnector(loop=None, local_cpu_backend=memory, config=memory.config)
        yield made
        asyncio.run(made.close())


def test_chunks_come_back(connector):
    keys = [Key(f"model@4@0@{i:x}@half") for i in range(20)]
    chunks = [Chunk(seed=i + 1) for i in range(20)]

    async def there_and_back():
        assert not await connector.exists(keys[0]) and await connector.get(keys[0]) is None
        await connector.batched_put(keys, chunks)
        await connector.put(keys[0], chunks[0])  # again: no failure
        assert await connector.exists(keys[19]) and await connector.ping() == 0
        return await connector.batched_get([*keys, Key("other")])

    found = asyncio.run(there_and_back())
    assert [each.byte_array == chunk.byte_array for each, chunk in zip(found, chunks)] == [True] * 20 and found[20] is None
    assert connector.batched_contains([*keys, Key("other")]) == 20 and connector.exists_sync(keys[3])
    assert all(chunk.count == 1 for chunk in chunks)  # the caller's
    assert sorted(asyncio.run(connector.list())) == sorted(keys)
    assert connector.remove_sync(keys[5]) and not connector.remove_sync(keys[5]) and not connector.exists_sync(keys[5])
    for key in keys[:5] + keys[6:]:
        assert connector.remove_sync(key)


def test_a_chunk_of_fewer_tokens(connector):
    short = Chunk((2, LAYERS, 5, 8), seed=7)

    async def there_and_back():
        await connector.put(Key("short"), short)
        return await connector.get(Key("short"))

    found = asyncio.run(there_and_back())
    assert bytes(found.byte_array) == bytes(short.byte_array)
    assert connector.remove_sync(Key("short"))


def test_a_chunk_of_another_model_is_a_miss(connector):
    async def look():
        await connector._pool.put_async("odd", b"seven b")
        await connector._pool.put_async("odd/shape", b"")
        return await connector.get(Key("odd"))

    if not connector.save_chunk_meta:
        assert asyncio.run(look()) is None and connector._memory.made[-1].count == 0
    else:
        whole = Chunk(seed=3)

        async def changed():
            await connector.put(Key("changed"), whole)
            await connector._pool.put_async("changed", b"seven b")
            return await connector.get(Key("changed"))

        assert asyncio.run(changed()) is None and connector._memory.made[-1].count == 0


def test_memory_is_used_until_a_put_has_ended(connector, monkeypatch):
    """LMCache reuses the memory of all chunks when batched_put() ends, also by an error or because it was cancelled."""
    ended = []

    async def put_slowly(name, data, **_):
        if name.startswith("refused"):
            raise peerlane.Error(28, "no space")
        await asyncio.sleep(0.2)
        ended.append(name)

    monkeypatch.setattr(connector, "_pool", types.SimpleNamespace(put_async=put_slowly))
    names = ["a", "a/shape"] if connector.save_chunk_meta else ["a"]

    async def run(keys, limit):
        await asyncio.wait_for(connector.batched_put([Key(key) for key in keys], [Chunk(seed=1) for _ in keys]), limit)

    with pytest.raises(peerlane.Error, match="no space"):
        asyncio.run(run(["refused", "a"], 10))
    assert ended == names
    ended.clear()
    with pytest.raises(TimeoutError):
        asyncio.run(run(["a"], 0.05))
    assert ended == names


def test_cancelled_gets_release_their_memory(connector):
    chunks = {name: Chunk(seed=2) for name in ("slow", "fast")}
    real = connector._pool

    async def get_slowly(name, data, **more):
        reply = await real.get_async(name, data, **more)
        if name == "slow":
            await asyncio.sleep(0.2)
            late.append(name)
        return reply

    late = []

    async def run():
        await connector.batched_put([Key(name) for name in chunks], list(chunks.values()))
        connector._memory.made.clear()
        connector._pool = types.SimpleNamespace(get_async=get_slowly)
        try:
            await asyncio.wait_for(connector.batched_get([Key(name) for name in chunks]), 0.1)
        finally:
            connector._pool = real

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert late == ["slow"] and [memory.count for memory in connector._memory.made] == [0, 0]
    for name in chunks:
        assert connector.remove_sync(Key(name))


def test_a_description_that_cannot_be_read_is_a_miss(connector, monkeypatch):
    if connector.save_chunk_meta:
        import sys

        def refuse(_):
            raise KeyError(99)

        monkeypatch.setattr(sys.modules["peerlane.integrations.lmcache"].RemoteMetadata, "deserialize", refuse)
        asyncio.run(connector.put(Key("strange"), Chunk(seed=4)))
        assert asyncio.run(connector.get(Key("strange"))) is None
