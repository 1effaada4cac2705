# SPDX-License-Identifier: Apache-2.0
"""peerlane.messages between two processes, each with a simulated GPU of its own."""

import asyncio
import errno

import job
import numpy as np
import peerlane
import pytest
from peerlane import messages, testing


def exchange(rank, rendezvous):
    peer = 1 - rank
    with messages.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        assert (m.rank, m.size) == (rank, 2) and m.peer_is_alive(peer) and "rank" in m.plan(peer)
        for size in (0, 4, 5000, 1 << 20):
            values = np.random.default_rng(size).integers(0, 255, size, np.uint8)
            x = testing.array(values if rank == 0 else np.zeros(size, np.uint8), device=rank)
            if rank == 0:
                m.send(1, x, tag=size)
            else:
                assert m.recv(0, x, tag=size, timeout=30) == (0, size, size)
                assert np.array_equal(x.get(), values)
        small = np.zeros(3, np.float32)
        if rank == 0:
            m.isend(1, np.arange(3, dtype=np.float32), 5).wait(30)
        else:
            m.irecv(messages.ANY_SOURCE, small, 5).wait(30)
            assert list(small) == [0, 1, 2]
        assert m.all_gather(bytes([rank, 7])) == [b"\0\7", b"\1\7"]
        refusals(m, peer)
        windows(m, rank, peer)
        asyncio.run(waiting(m, rank, peer))
        m.barrier(30)
        assert sum(m.statistics().values()) > 0
    with pytest.raises(ValueError, match="closed"):
        m.barrier()


def refusals(m, peer):
    with pytest.raises(peerlane.Timeout) as told:
        m.recv(peer, np.zeros(1), tag=999, timeout=0.01)
    assert isinstance(told.value, TimeoutError) and isinstance(told.value, peerlane.Error)
    with pytest.raises(ValueError, match="gaps"):
        m.send(peer, testing.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="read-only"):
        m.recv(peer, b"1234", timeout=0.01)
    with pytest.raises(ValueError, match="no window's key"):
        m.put(b"short", 0, np.zeros(1))
    m.isend(peer, np.zeros(100, np.uint8), tag=997).wait(30)
    with pytest.raises(peerlane.Error) as told:
        m.recv(peer, np.zeros(10, np.uint8), tag=997, timeout=30)
    assert told.value.errno == errno.EMSGSIZE
    assert (told.value.source, told.value.tag, told.value.bytes) == (peer, 997, 100)
    asked = m.irecv(peer, np.zeros(1), tag=998)
    with pytest.raises(peerlane.Timeout):
        asked.wait(0.01)
    asked.cancel()
    with pytest.raises(peerlane.Error, match="ancel"):
        asked.wait()


def windows(m, rank, peer):
    mine = testing.zeros(64, np.int64, device=rank)
    window = m.expose(mine)
    keys = m.all_gather(window.key)
    values = np.full(4, rank + 1, np.int64)
    m.put(keys[peer], 8 * rank, values[:1]).wait(30)
    assert m.fetch_add(keys[peer], 16, 5) == 0
    m.barrier(30)
    assert mine.get()[peer] == peer + 1 and mine.get()[2] == 5
    seen = np.zeros(1, np.int64)
    m.get(keys[peer], 8 * rank, seen).wait(30)
    assert seen[0] == rank + 1
    m.barrier(30)
    window.close()


async def waiting(m, rank, peer):
    """A receive that comes before its message, and one that is there already."""
    x = testing.zeros(1000, device=rank)
    asked = m.irecv(peer, x, 11)
    await asyncio.sleep(0)
    sent = m.isend(peer, testing.array(np.full(1000, rank, np.float32), device=rank), 11)
    source, tag, size = await asked
    await sent
    assert (source, tag, size) == (peer, 11, 4000) and (x.get() == peer).all() and await asked == (peer, 11, 4000)


def test_messages(tmp_path):
    job.run(exchange, tmp_path)


def test_who_takes_part_must_be_said(monkeypatch):
    with pytest.raises(peerlane.Error):
        messages.open(timeout=1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for name, value in {"MASTER_ADDR": "host", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert messages._torchrun_place("", 0, 0) == ("host:29501", 3, 8)
    assert messages._torchrun_place("file:x", 1, 2) == ("file:x", 1, 2)
