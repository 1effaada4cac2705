# SPDX-License-Identifier: Apache-2.0
"""HostPool: memory at once, pinned behind its use; what ends it and what does not."""

import gc
import os
import weakref

import numpy as np
import peerlane
import pytest
from peerlane import testing

PIECE = 1 << 20


def test_is_memory_and_gets_pinned():
    pool = peerlane.HostPool(3 * PIECE + 5, piece_bytes=PIECE)
    assert pool.size_bytes == len(pool) == 3 * PIECE + 5 and not pool.closed
    whole = np.frombuffer(pool, np.uint8)
    assert whole.flags.writeable and whole.ctypes.data == pool.address and not whole.any()
    whole[:] = 9
    pool.wait(60)
    assert pool.pinned_bytes == pool.size_bytes and whole.min() == 9
    assert bytes(memoryview(pool)[:3]) == b"\t\t\t"
    assert f"{pool.size_bytes} pinned" in repr(pool)


def test_blocks_go_in_and_out():
    pool = peerlane.HostPool(4 * PIECE, piece_bytes=PIECE)
    pages = pool.array((64, 4, 128), np.float32, offset=PIECE - 4096)  # across two pieces
    values = np.random.default_rng(1).random((64, 4, 128), np.float32)
    cache = testing.array(values)
    for pinned in (False, True):  # as far as it is, and wholly
        if pinned:
            pool.wait(60)
        pages[:] = 0
        peerlane.copy_blocks(pages, cache, range(63, -1, -1), range(64))
        assert np.array_equal(pages[::-1], values)
        back = testing.zeros(values.shape, np.float32)
        peerlane.copy_blocks(back, pages, range(64), range(63, -1, -1))
        assert np.array_equal(back.get(), values)


def test_close_waits_for_views():
    with peerlane.HostPool(PIECE, piece_bytes=PIECE) as pool:
        view = pool.array(10)
        with pytest.raises(BufferError, match="1 views"):
            pool.close()
        assert not pool.closed
        del view
        gc.collect()
    assert pool.closed and "closed" in repr(pool)
    pool.close()
    for use in (lambda: pool.array(1), lambda: memoryview(pool), lambda: pool.pinned_bytes, lambda: pool.wait(0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_views_keep_the_memory():
    pool = peerlane.HostPool(PIECE, piece_bytes=PIECE)
    gone = weakref.ref(pool)
    view = pool.array(PIECE)[5:9]
    view[:] = 3
    del pool
    gc.collect()
    assert gone() is not None and (view == 3).all()
    del view
    gc.collect()
    assert gone() is None


def test_an_operation_keeps_the_memory():
    pool = peerlane.HostPool(PIECE, piece_bytes=PIECE)
    gone = weakref.ref(pool)
    operation = peerlane.copy_blocks_async(pool.array((8, 64)), testing.zeros((8, 64), np.uint8))
    del pool
    gc.collect()
    assert gone() is not None
    operation.wait()
    del operation
    gc.collect()
    assert gone() is None


def test_mistakes_are_named():
    with pytest.raises(peerlane.Error, match="ask for less") as caught:
        peerlane.HostPool(1 << 50)
    assert caught.value.errno == 12
    with pytest.raises(peerlane.Error, match="no bytes"):
        peerlane.HostPool(0)
    with pytest.raises(peerlane.Error, match="power of two"):
        peerlane.HostPool(PIECE, piece_bytes=100_000)
    with pytest.raises(ValueError, match="size_bytes: -1 is not from 0"):
        peerlane.HostPool(-1)
    pool = peerlane.HostPool(PIECE, piece_bytes=PIECE)
    for shape, offset in ((PIECE + 1, 0), (PIECE, 1), (1, -1), (0, 0)):
        with pytest.raises(ValueError, match="the host pool has"):
            pool.array(shape, offset=offset)


def test_is_not_there_in_a_forked_child():
    pool = peerlane.HostPool(PIECE, piece_bytes=PIECE)
    pool.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            memoryview(pool)
        except peerlane.Error as reason:
            code = 0 if reason.errno == 13 and "child of fork" in str(reason) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.array(PIECE).sum() == 0


def test_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not hasattr(torch, "float32"):
        pytest.skip("PyTorch is not installed")  # another test's stand-in
    pool = peerlane.HostPool(PIECE, piece_bytes=PIECE)
    x = pool.tensor((4, 8), torch.float32, offset=64)
    x.fill_(2)
    assert x.data_ptr() == pool.address + 64 and pool.array((4, 8), np.float32, 64).sum() == 64
    with pytest.raises(ValueError, match="the host pool has"):
        pool.tensor(PIECE + 1)
