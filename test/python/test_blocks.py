# SPDX-License-Identifier: Apache-2.0
"""copy_blocks: every block is where it belongs, and mistakes are errors before anything moves."""

import asyncio

import numpy as np
import peerlane
import pytest
from peerlane import testing

BLOCK = (4, 8)


def pages(count, seed):
    return np.random.default_rng(seed).random((count, *BLOCK), np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, list])
def test_out_and_back(dtype):
    make = (lambda numbers: numbers) if dtype is list else (lambda numbers: np.array(numbers, dtype))
    layers = [pages(20, seed) for seed in range(3)]
    cache, pool = [testing.array(layer) for layer in layers], [np.zeros((6, *BLOCK), np.float32) for _ in layers]
    peerlane.copy_blocks(pool, cache, make([5, 0, 3]), make([19, 7, 8]))
    for layer, host in zip(layers, pool):
        assert np.array_equal(host[[5, 0, 3]], layer[[19, 7, 8]])
        assert not host[[1, 2, 4]].any()
    back = [testing.zeros((20, *BLOCK), np.float32) for _ in layers]
    peerlane.copy_blocks(back, pool, make([1, 2, 3]), make([5, 0, 3]), urgent=True)
    for layer, x in zip(layers, back):
        assert np.array_equal(x.get()[[1, 2, 3]], layer[[19, 7, 8]])
        assert not x.get()[0].any() and not x.get()[4:].any()


def test_a_page_that_holds_all_layers():
    layers = [pages(9, seed) for seed in range(2)]
    cache = [testing.array(layer) for layer in layers]
    pool = np.zeros((5, 2, *BLOCK), np.float32)
    peerlane.copy_blocks([pool[:, 0], pool[:, 1]], cache, None, np.array([8, 1, 4], np.int32))
    assert np.array_equal(pool[:3], np.stack([layer[[8, 1, 4]] for layer in layers], axis=1))
    assert not pool[3:].any()


def test_inside_one_gpu_and_awaited():
    values = pages(16, 1)
    cache, other = testing.array(values), testing.zeros((16, *BLOCK), np.float32)

    async def move():
        await peerlane.copy_blocks_async(other, cache, range(0, 8), range(8, 16))

    asyncio.run(move())
    assert np.array_equal(other.get()[:8], values[8:])


def test_mistakes_move_nothing():
    cache, pool = testing.array(pages(8, 2)), np.zeros((8, *BLOCK), np.float32)

    def refused(kind, words, *arguments):
        with pytest.raises(kind, match=words):
            peerlane.copy_blocks(*arguments)
        assert not pool.any()

    refused(peerlane.Error, "index 1 of the source is 8", pool, cache, [0, 1], [0, 8])
    refused(peerlane.Error, "index 0 of the source is -1", pool, cache, [0, 1], [-1, 3])
    refused(peerlane.Error, "block 3 is written twice", pool, cache, [3, 1, 3], [0, 1, 2])
    refused(ValueError, "2 blocks of the destination, 3 of the source", pool, cache, [0, 1], [0, 1, 2])
    refused(ValueError, "int32 and int64", pool, cache, np.array([0.0]), [1])
    refused(TypeError, "src_indices: expected integers of at most 64 bits, got float64", pool, cache, [0], [0.5])
    refused(TypeError, "dst_indices: expected integers of at most 64 bits, got bool", pool, cache, [True, False], [0, 1])  # no mask
    refused(TypeError, "src_indices: expected integers of at most 64 bits, got object", pool, cache, [0], [2**70])
    refused(ValueError, "dst_indices: a number is outside of", pool, cache, [2**63], [0])
    refused(ValueError, "one run of numbers", pool, cache, np.arange(8)[::2], [0, 1, 2, 3])
    refused(ValueError, "indices in GPU memory", pool, cache, testing.array(np.arange(2)), [0, 1])
    refused(ValueError, "both sides lie in host memory", pool, np.ones_like(pool), [0], [1])
    refused(ValueError, "blocks of 128 bytes", pool, testing.zeros((8, 3), np.float32), [0], [1])
    refused(ValueError, "differ in number of tensors", [pool], [cache, cache], [0], [1])
    refused(ValueError, "in one piece", pool[:, :, ::2], testing.zeros((8, 4, 4), np.float32), [0], [1])
    refused(ValueError, "expected at least one tensor, got none", [], [], None, None)
    refused(TypeError, "destination", None, cache, [0], [1])
    with pytest.raises(ValueError, match="read-only"):
        peerlane.copy_blocks(np.broadcast_to(pool, pool.shape), cache, [0], [1])
    with pytest.raises(peerlane.Error, match="read and written"):
        peerlane.copy_blocks(cache, cache, [0, 1], [1, 2])


def address(x):
    return x.__cuda_array_interface__["data"][0] if hasattr(x, "__cuda_array_interface__") else x.ctypes.data


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, list])
def test_a_list_of_addresses(dtype):
    make = (lambda numbers: [int(n) for n in numbers]) if dtype is list else (lambda numbers: np.array(numbers, dtype))
    layers = [pages(20, seed) for seed in range(2)]
    cache, pool = [testing.array(layer) for layer in layers], np.zeros((6, *BLOCK), np.float32)
    size = pool[0].nbytes
    wanted = [(0, 7, 5), (1, 19, 0), (0, 8, 3), (1, 0, 4)]  # layer, page, place in the pool
    dst = make([address(pool) + place * size for _, _, place in wanted])
    src = make([address(cache[layer]) + page * size for layer, page, _ in wanted])
    expected = np.zeros_like(pool)
    for layer, page, place in wanted:
        expected[place] = layers[layer][page]
    peerlane.copy_block_list(dst, src, size)
    assert np.array_equal(pool, expected)
    pool[:] = 0
    expected[4, 2:] = 0  # the last block's first half alone
    peerlane.copy_block_list(dst, src, make([size, size, size, size // 2]), urgent=True)
    assert np.array_equal(pool, expected)

    async def back():
        await peerlane.copy_block_list_async(src[:1], dst[:1], size, after=0)

    pool[5] = 42
    asyncio.run(back())
    assert (cache[0].get()[7] == 42).all() and np.array_equal(cache[0].get()[8], layers[0][8])


def test_mistakes_in_a_list_of_addresses_move_nothing():
    cache, pool = testing.array(pages(8, 2)), np.zeros((8, *BLOCK), np.float32)
    size = pool[0].nbytes
    dst, src = (np.array([address(x) + i * size for i in range(8)], np.int64) for x in (pool, cache))

    def refused(kind, words, *arguments, **more):
        with pytest.raises(kind, match=words):
            peerlane.copy_block_list(*arguments, **more)
        assert not pool.any()

    twice = dst.copy()
    twice[6] = dst[2] + 4
    refused(peerlane.Error, "block [26] of the destination.*another block writes there", twice, src, size)
    refused(peerlane.Error, "block 3 of the source: 0x0 is not a valid address", dst, np.where(np.arange(8) == 3, 0, src), size)
    refused(peerlane.Error, "block 1 of the source: 0xfff", dst, np.where(np.arange(8) == 1, -5, src), size)
    refused(peerlane.Error, "freed", dst, np.full(8, 4096), size)
    refused(peerlane.Error, "host memory both", dst, dst + 4, 4)
    refused(TypeError, "src: expected integers of at most 64 bits, got float64", list(dst), [float(each) for each in src], size)
    refused(ValueError, "dst: a number is outside of 0 to", [-1], [int(src[0])], size)
    refused(ValueError, "differ in length", dst, src[:3], size)
    refused(ValueError, "differ in length", dst, src, np.array([size]))
    refused(ValueError, "int64 and uint64", dst, src.astype(np.int32), size)
    refused(ValueError, "one run of numbers", dst[::2], src[::2], size)
    refused(ValueError, "GPU memory: give them in host memory", dst, testing.array(src), size)
    refused(ValueError, "addresses do not name a stream", dst, src, size, after="auto")
    refused(ValueError, "the size", dst, src, -1)
    refused(TypeError, "destinations", object(), src, size)
