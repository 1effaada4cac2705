# SPDX-License-Identifier: Apache-2.0
"""The store as vLLM's tier behind host memory: chunks go out and come back, a chunk that is gone is a miss and no wrong bytes, a store
that is away fails jobs and hangs none. vLLM's own files are used where VLLM_FILES names them (vllm_stand_in.py)."""

import time
import types
from unittest import mock

import numpy as np
import peerlane
import pytest

import vllm_stand_in as stand_in
from test_store import serve

CHUNKS, BYTES = 150, 4096  # more than are under way at once


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    data = tmp_path_factory.mktemp("vllm")
    process = serve(data, "--listen", "none")
    yield str(data / "store.sock")
    process.terminate()
    process.wait(30)


@pytest.fixture
def module():
    with stand_in.installed("vllm_store") as loaded:
        yield loaded


def spec(model="org/model", rank=0):
    parallel = types.SimpleNamespace(tp_size=2, pp_size=1, pcp_size=1, dcp_size=1, rank=rank, is_parallelism_agnostic=False)
    config = types.SimpleNamespace(model=types.SimpleNamespace(name=model, dtype="bfloat16"), cache=types.SimpleNamespace(tokens_per_hash=16),
                                   groups=(), parallel=parallel, canonical_layout=False, replicated_layout=False, kv_cache_layout=None)
    return types.SimpleNamespace(config=config, blocks_per_chunk=1)


class Tier:
    """A tier over host memory of its own, and what the scheduler does with it."""

    def __init__(self, module, address, pool, seed=1, timeout=5, **more):
        self.values = np.random.default_rng(seed).integers(0, 255, (CHUNKS, BYTES), np.uint8)
        self.tier = module.PeerlaneStoreTier(spec(**more), memoryview(self.values), "PeerlaneStoreTier", store=address, pool=pool,
                                             memory_bytes=8 << 20, disk_bytes=64 << 20, timeout=timeout)
        self.request = types.SimpleNamespace(req_id="r1")

    def job(self, number, keys, chunks):
        return types.SimpleNamespace(job_id=number, keys=keys, chunk_ids=np.array(chunks), is_promotion=False, req_context=self.request)

    def finish(self, *numbers):
        self.tier.drain_jobs()
        results = {}
        for _ in range(1000):
            results.update({result.job_id: result for result in self.tier.get_finished_jobs()})
            if set(numbers) <= set(results):
                return results
            time.sleep(0.005)
        raise AssertionError(results)

    def has(self, keys):
        """By the scheduler's steps: a key is asked for, and for again until there is an answer."""
        for _ in range(20_000):
            answers = [self.tier.lookup(key, self.request).name for key in keys]
            if "RETRY" not in answers:
                return [answer == "HIT" for answer in answers]
            self.tier.on_schedule_end(None)
            time.sleep(0.002)
        raise AssertionError(answers)

    def forget(self):
        self.tier.on_request_finished(self.request)


def key(number, group=0):
    return number.to_bytes(16, "big") + group.to_bytes(4, "big")


def test_chunks_go_out_and_come_back(module, address):
    first, second = Tier(module, address, "back"), Tier(module, address, "back", seed=2)
    keys = [key(i) for i in range(100)] + [key(5, group=1)]
    chunks = np.random.default_rng(3).permutation(CHUNKS)[: len(keys)]
    assert first.has(keys[:3]) == [False] * 3
    first.forget()
    first.tier.on_new_request(first.request)
    first.tier.submit_store(first.job(7, keys, chunks))
    result = first.finish(7)[7]
    assert result.success and result.transfer_time > 0 and getattr(result, "transfer_bytes", 101 * BYTES) == 101 * BYTES
    # Another process's tier of the same model has them.
    assert second.has([*keys, key(999)]) == [True] * len(keys) + [False]
    places = np.arange(len(keys))[::-1].copy()
    second.tier.submit_load(second.job(8, keys, places))
    assert second.finish(8)[8].success
    for chunk, place in zip(chunks, places, strict=True):
        assert np.array_equal(second.values[place], first.values[chunk])
    # The same keys once more: what is there stays, and that is no failure.
    first.tier.submit_store(first.job(9, keys[:2], chunks[2:4]))
    assert first.finish(9)[9].success
    second.tier.submit_load(second.job(10, keys[:1], [120]))
    assert second.finish(10)[10].success and np.array_equal(second.values[120], first.values[chunks[0]])
    first.tier.shutdown()
    second.tier.shutdown()


def test_models_and_ranks_do_not_meet(module, address):
    tiers = [Tier(module, address, "apart"), Tier(module, address, "apart", model="other"), Tier(module, address, "apart", rank=1)]
    tiers[0].tier.submit_store(tiers[0].job(1, [key(1)], [0]))
    assert tiers[0].finish(1)[1].success
    assert [tier.has([key(1)]) for tier in tiers] == [[True], [False], [False]]
    for tier in tiers:
        tier.tier.shutdown()


def test_a_chunk_that_is_gone_is_a_miss(module, address):
    tier = Tier(module, address, "gone")
    keys = [key(i) for i in range(4)]
    tier.tier.submit_store(tier.job(1, keys, range(4)))
    assert tier.finish(1)[1].success and tier.has(keys) == [True] * 4
    tier.tier._pool.erase(tier.tier._names.get_file_name(keys[2]))
    before = tier.values.copy()
    tier.tier.submit_load(tier.job(2, keys, [10, 11, 12, 13]))
    result = tier.finish(2)[2]
    assert not result.success and set(result.successful_keys) == {keys[0], keys[1], keys[3]}
    assert np.array_equal(tier.values[12], before[12]) and np.array_equal(tier.values[13], before[3])
    assert tier.has(keys) == [True, True, False, True], "the scheduler must not ask for it again"
    # A value of another length, of another layout, is none.
    tier.forget()
    tier.tier._pool.put(tier.tier._names.get_file_name(keys[3]), b"short")
    assert tier.has(keys[3:]) == [False]
    tier.tier.shutdown()


def test_a_store_that_ends_fails_jobs_and_hangs_none(module, tmp_path, caplog):
    process = serve(tmp_path, "--listen", "none")
    tier = Tier(module, str(tmp_path / "store.sock"), "ends", timeout=1)
    tier.tier.submit_store(tier.job(1, [key(1)], [0]))
    assert tier.finish(1)[1].success
    process.kill()
    process.wait(30)
    tier.tier.submit_store(tier.job(2, [key(i) for i in range(100)], range(100)))
    tier.tier.submit_load(tier.job(3, [key(1)], [5]))
    results = tier.finish(2, 3)
    assert not results[2].success and not results[3].success
    # Chunks that are asked for meanwhile are misses; the store's time-out is waited for once, and not for each of them.
    with mock.patch.object(tier.tier._pool, "stat", wraps=tier.tier._pool.stat) as asked:
        assert tier.has([key(i) for i in range(20)]) == [False] * 20
    assert asked.call_count <= 1
    assert "the cache goes on without" in caplog.text
    # It is back: once the pause is over it is asked again.
    process = serve(tmp_path, "--listen", "none")
    for number in range(4, 34):  # a busy machine may need more than the store's time-out to connect again
        tier.forget()
        tier.tier._away_until = 0.0
        tier.tier.submit_store(tier.job(number, [key(7)], [0]))
        if tier.finish(number)[number].success:
            break
    assert tier.has([key(7)]) == [True]
    tier.tier.shutdown()
    process.terminate()
    process.wait(30)


def test_the_tiering_spec_copies_by_lists(module):
    """As test_vllm.py's spec does: its worker's handlers are ours."""
    made = module.PeerlaneTieringOffloadingSpec.__new__(module.PeerlaneTieringOffloadingSpec)
    if stand_in.FILES:
        assert module.PeerlaneTieringOffloadingSpec.__mro__[1].__module__ == "vllm.v1.kv_offload.tiering.spec"
        return  # its worker needs shared memory of vLLM's, which test_vllm.py's spec does not
    made.num_chunks = 4
    worker = made.create_worker(types.SimpleNamespace(tensors=[]))
    assert type(worker._store_handler).__name__ == "_Direction"
    worker.shutdown()


def test_what_is_wrong_is_named(module, address):
    for version in ("0.30.0", "0.33.2"):
        module.check_release(version)
    with pytest.raises(ImportError, match=", not 0.29.1.*PeerlaneOffloadingSpec"):
        module.check_release("0.29.1")
    with pytest.raises(ValueError, match="disk_byte: no such setting; disk_bytes"):
        module.PeerlaneStoreTier(spec(), memoryview(np.zeros((2, 64), np.uint8)), "t", store=address, disk_byte=5)
    assert peerlane  # imported without vLLM
