# SPDX-License-Identifier: Apache-2.0
"""The spec for vLLM's OffloadingConnector: blocks go out and come back, none is read before the model's stream has written it, and
other releases get an error. vLLM's own files are used where VLLM_FILES names them (vllm_stand_in.py)."""

import time
import types

import numpy as np
import peerlane
import pytest
import vllm_stand_in as stand_in
from peerlane import testing

LAYERS, BLOCKS, CHUNKS, PAGE = 3, 12, 8, 256


@pytest.fixture
def module():
    with stand_in.installed() as loaded:
        yield loaded


class Cache:
    """A cache of some layers, and a worker for it."""

    def __init__(self, module):
        random = np.random.default_rng(5)
        self.values = [random.integers(-128, 127, (BLOCKS, PAGE), np.int8) for _ in range(LAYERS)]
        self.arrays = [testing.array(values) for values in self.values]
        tensors = [types.SimpleNamespace(tensor=stand_in.CudaTensor(array), page_size_bytes=PAGE) for array in self.arrays]
        refs = [types.SimpleNamespace(tensor_idx=i, page_size_bytes=PAGE, mapping=None) for i in range(LAYERS)]
        spec = module.PeerlaneOffloadingSpec.__new__(module.PeerlaneOffloadingSpec)
        spec.num_chunks = spec.num_blocks = CHUNKS
        spec.blocks_per_chunk = spec.block_size_factor = 1
        self.worker = spec.create_worker(types.SimpleNamespace(tensors=tensors, group_data_refs=[refs]))

    def gpu(self, blocks):
        if stand_in.FILES:
            from vllm.v1.kv_offload.base import GPULoadStoreSpec
            return GPULoadStoreSpec(blocks, group_sizes=(len(blocks),), block_indices=(0,))
        return types.SimpleNamespace(block_ids=np.array(blocks, np.int32))

    def cpu(self, chunks):
        if stand_in.FILES:
            from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
            return CPULoadStoreSpec(chunks)
        return types.SimpleNamespace(block_ids=np.array(chunks, np.int32))

    def finish(self, *job_ids):
        self.worker.wait(set(job_ids))
        results = {}
        for _ in range(10_000):
            results.update({result.job_id: result for result in self.worker.get_finished()})
            if set(job_ids) <= set(results):
                return results
            time.sleep(0.001)
        raise AssertionError(results)

    def blocks(self, layer):
        return self.arrays[layer].get()


def test_blocks_go_out_and_come_back(module):
    cache = Cache(module)
    assert cache.worker.submit_store(1, cache.gpu([3, 0, 11]), cache.cpu([7, 2, 4]))
    result = cache.finish(1)[1]
    assert result.success and result.transfer_size == 3 * LAYERS * PAGE and result.transfer_time > 0
    for array in cache.arrays:
        peerlane.copy(array, np.zeros((BLOCKS, PAGE), np.int8))
    assert cache.worker.submit_load(2, cache.cpu([4, 7]), cache.gpu([5, 6]))
    expedited = {"expedited": True} if hasattr(cache.worker, "_expedited_load_handler") else {}  # since 0.33
    assert cache.worker.submit_load(3, cache.cpu([2]), cache.gpu([9]), **expedited)
    results = cache.finish(2, 3)
    assert results[2].success and results[3].success
    for layer in range(LAYERS):
        expected = np.zeros((BLOCKS, PAGE), np.int8)
        expected[[5, 6, 9]] = cache.values[layer][[11, 3, 0]]
        assert np.array_equal(cache.blocks(layer), expected)
    cache.worker.shutdown()


def test_nothing_is_read_while_the_model_writes(module):
    cache = Cache(module)
    stand_in.Platform.model.is_idle = False
    cache.worker.submit_store(1, cache.gpu([1]), cache.cpu([0]))
    time.sleep(0.02)
    assert cache.worker.get_finished() == []
    late = [np.full((BLOCKS, PAGE), 40 + layer, np.int8) for layer in range(LAYERS)]
    for array, values in zip(cache.arrays, late):
        peerlane.copy(array, values)  # the model's last write
    stand_in.Platform.model.is_idle = True
    cache.finish(1)
    cache.worker.submit_load(2, cache.cpu([0]), cache.gpu([8]))
    for array in cache.arrays:
        peerlane.copy(array, np.zeros((BLOCKS, PAGE), np.int8))
    cache.finish(2)
    cache.worker.submit_load(3, cache.cpu([0]), cache.gpu([7]))
    cache.finish(3)
    for layer in range(LAYERS):
        assert (cache.blocks(layer)[7] == 40 + layer).all()
    cache.worker.shutdown()


def test_many_jobs_end_in_order(module):
    cache = Cache(module)
    for job in range(40):
        cache.worker.submit_store(job, cache.gpu([job % BLOCKS]), cache.cpu([job % CHUNKS]))
    results = list(cache.finish(*range(40)))
    assert results == sorted(results)
    cache.worker.shutdown()


def test_a_list_that_fails_is_told(module, caplog):
    cache = Cache(module)
    cache.worker.submit_store(1, cache.gpu([1, 2]), cache.cpu([3, 3]))  # two blocks into one place
    assert not cache.finish(1)[1].success
    assert "job 1" in caplog.text and "another block writes there" in caplog.text
    cache.worker.submit_store(2, cache.gpu([1]), cache.cpu([3]))
    assert cache.finish(2)[2].success
    cache.worker.shutdown()


def test_other_releases_get_an_error(module):
    for version in ("0.26.0", "0.30.1", "0.33.4", "0.33.1.dev3+gabc"):
        module.check_release(version)
    for version in ("0.2.6", "0.25.1", "0.34.0", "1.0.0"):
        with pytest.raises(ImportError, match=f", not {version}.*CPUOffloadingSpec"):
            module.check_release(version)
    with pytest.raises(ImportError, match="has no _swap_blocks_batch"):
        module._Direction(object(), False)
    assert peerlane  # imported without vLLM
