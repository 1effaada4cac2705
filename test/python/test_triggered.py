# SPDX-License-Identifier: Apache-2.0
"""peerlane.triggered between two processes: rounds of puts that no CPU orders, and what the host sees of them."""

import time

import job
import numpy as np
import peerlane
import pytest
from peerlane import triggered, testing

ROUNDS = 20


def ping_pong(rank, rendezvous):
    peer = 1 - rank
    testing.driver().enter(rank)
    stream = testing.Stream(rank)
    inbox = testing.zeros(1024, np.int32, device=rank)
    outboxes = [testing.array(np.full(1024, 100 * rank + i, np.int32), device=rank) for i in range(ROUNDS)]
    with triggered.open(rendezvous=rendezvous, rank=rank, size=2, device=rank) as s:
        assert (s.rank, s.size) == (rank, 2)
        mine = s.expose(inbox)
        theirs = s.import_window(s.all_gather(mine.key)[peer])
        channel = s.connect(peer, 1)
        s.all_gather(b"")
        time.sleep(0.2 * rank)  # longer than ready() waits between two looks for Ctrl-C
        channel.ready(30)
        for i in range(ROUNDS):  # all queued at once: the answer to a put is what lets the next one go
            if rank == 1:
                assert channel.wait_signal(stream) == i + 1
            assert channel.put_signal(stream, theirs, 0, outboxes[i]) == i + 1
            if rank == 0:
                channel.wait_signal(stream.ptr)
        channel.host_wait(ROUNDS, 30)
        stream.synchronize()
        assert channel.arrived(ROUNDS) and (inbox.get() == 100 * peer + ROUNDS - 1).all()
        state = channel.state()
        assert (state["error"], state["puts"], state["waits"]) == (0, ROUNDS, ROUNDS) and state["executor"] in ("peer", "proxy")
        assert channel.diag() and s.diag()
        with pytest.raises(peerlane.Timeout):
            channel.host_wait(ROUNDS + 1, 0.01)
        with pytest.raises(peerlane.Error):
            channel.put_signal(stream, theirs, 4096, outboxes[0])  # leaves the window
        with pytest.raises(TypeError, match="expected a stream, got "):
            channel.signal("stream")
        s.barrier()
    with pytest.raises(ValueError, match="closed"):
        s.barrier()


def test_triggered(tmp_path):
    job.run(ping_pong, tmp_path)


def collectives(rank, rendezvous):
    testing.driver().enter(rank)
    stream = testing.Stream(rank)
    with triggered.open(rendezvous=rendezvous, rank=rank, size=2, device=rank) as s:
        all = s.open_collectives()
        for dtype in (np.float32, np.float16, np.int64):
            x = testing.array(np.arange(600, dtype=dtype) + rank, device=rank)
            out = testing.zeros(600, dtype, device=rank)
            block = testing.zeros(300, dtype, device=rank)
            all.all_reduce(stream, x, out)
            all.reduce_scatter(stream, x, block, op="minimum")
            stream.synchronize()
            assert (out.get() == 2 * np.arange(600) + 1).all()
            assert (block.get() == np.arange(300) + 300 * rank).all()
            all.all_gather(stream, block, out)
            stream.synchronize()
            assert (out.get() == np.arange(600)).all()
            all.all_to_all(stream, x, out)
            stream.synchronize()
            assert (out.get() == np.concatenate([np.arange(300) + 300 * rank, np.arange(300) + 300 * rank + 1])).all()
            all.all_reduce(stream, x)  # in place
            all.barrier(stream)
            stream.synchronize()
            assert (x.get() == 2 * np.arange(600) + 1).all()
        with pytest.raises(ValueError, match="not one of sum"):
            all.all_reduce(stream, x, op="average")
        with pytest.raises(TypeError, match="elements of type"):
            all.all_reduce(stream, x, testing.zeros(600, np.float32, device=rank))
        with pytest.raises(peerlane.Error):
            all.all_reduce(stream, np.zeros(4, np.float32))  # host memory
        all.check()
        all.close()
        all.close()
        with pytest.raises(peerlane.Error, match="not live"):
            all.check()


def test_collectives(tmp_path):
    job.run(collectives, tmp_path)
