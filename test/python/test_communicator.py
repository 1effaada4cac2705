# SPDX-License-Identifier: Apache-2.0
"""peerlane.communicator between two processes, each with a simulated GPU of its own."""

import asyncio
import errno
import multiprocessing
import os
import pathlib
import socket
import sys
import threading
import time

import job
import numpy as np
import peerlane
import pytest
from peerlane import communicator, testing


def exchange(rank, rendezvous):
    peer = 1 - rank
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
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
            m.irecv(communicator.ANY_SOURCE, small, 5).wait(30)
            assert list(small) == [0, 1, 2]
        assert m.all_gather(bytes([rank, 7])) == [b"\0\7", b"\1\7"]
        refusals(m, peer)
        windows(m, rank, peer)
        asyncio.run(waiting(m, rank, peer))
        m.barrier(30)
        assert sum(m.statistics().values()) > 0
    with pytest.raises(ValueError, match="closed"):
        m.barrier()


def failures(rank, rendezvous):
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        told = []
        first, second = m.await_failure(), m.await_failure()
        second.then(told.append)
        m.barrier(30)
        if rank == 1:
            return

        async def next_failure():
            return await first

        assert asyncio.run(asyncio.wait_for(next_failure(), 30)) == (1, communicator.FAILURE_CLOSED, 0)
        assert not m.peer_is_alive(1) and not second.done() and not told
        second.cancel()
        with pytest.raises(peerlane.Error):
            second.wait(30)
        assert told == [errno.ECANCELED]


def returns(rank, rendezvous):
    """Rank 1 dies in its first process, and comes back in its second."""
    place = "127.0.0.1:" + pathlib.Path(rendezvous.removeprefix("file:"), "port").read_text()
    if rank == 0:
        return elastic_rank(0, place, 1)
    spawn = multiprocessing.get_context("spawn")
    for process in (1, 2):
        child = spawn.Process(target=elastic_rank, args=(1, place, process))
        child.start()
        child.join(100)
        assert child.exitcode == (7 if process == 1 else 0)


def elastic_rank(rank, place, process):
    with communicator.open(rendezvous=place, rank=rank, size=2, host_only=True, elastic=True) as m:
        assert m.incarnation(rank) == process
        x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
        if process == 1:
            m.iall_reduce(x, out).wait(30)
            if rank == 1:
                os._exit(7)
            failed, back = m.await_failure(), m.await_return()
            assert failed.wait(30)[0] == 1
            assert back.wait(30) == (1, 2, 0)
            assert m.incarnation(1) == 2
        with pytest.raises(peerlane.Error):
            m.barrier(30)
        m.restore_collectives(30)
        m.iall_reduce(x, out).wait(30)
        assert (out == 2).all()
        m.barrier(30)


def collectives(rank, rendezvous):
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        host = [lambda values: values, lambda x: x]
        gpu = [lambda values: testing.array(values, device=rank), lambda x: x.get()]
        for make, read in (host, gpu):
            x, out = make(np.arange(10, dtype=np.float32) + rank), make(np.zeros(10, np.float32))
            m.iall_reduce(x, out).wait(30)
            assert (read(out) == 2 * np.arange(10) + 1).all()
            m.iall_reduce(x, op="maximum").wait(30)  # in place
            assert (read(x) == np.arange(10) + 1).all()
            m.ireduce(x, out if rank == 1 else None, "product", root=1).wait(30)
            assert rank == 0 or (read(out) == (np.arange(10) + 1) ** 2).all()
            half = make(np.zeros(5, np.float32))
            m.ireduce_scatter(x, half).wait(30)
            assert (read(half) == 2 * (np.arange(5) + 5 * rank + 1)).all()
            m.iall_gather(half, out).wait(30)
            assert (read(out) == 2 * (np.arange(10) + 1)).all()
            m.igather(half, out if rank == 0 else None).wait(30)
            m.iscatter(out if rank == 0 else None, half).wait(30)
            assert (read(half) == 2 * (np.arange(5) + 5 * rank + 1)).all()
            m.ibroadcast(half, root=1).wait(30)
            assert (read(half) == 2 * (np.arange(5) + 6)).all()
            m.iall_to_all(x, out).wait(30)
            assert (read(out)[:5] == np.arange(5) + 5 * rank + 1).all() and (read(out)[5:] == read(out)[:5]).all()
        with pytest.raises(ValueError, match="not one of sum"):
            m.iall_reduce(x, op="average")
        with pytest.raises(TypeError, match="cannot be reduced"):
            m.iall_reduce(np.zeros(4, np.complex64))
        with pytest.raises(peerlane.Error):
            m.iall_gather(half, half)
        m.barrier(30)


def closings(rank, rendezvous):
    """A communicator is closed while other threads wait for what it has under way, look at it, and begin more."""
    if rank == 1:
        return
    for _ in range(5):
        with communicator.open(rank=0, size=1) as alone:
            ended, is_over = [], threading.Event()

            def wait_for(begin):
                operation = begin()
                try:
                    ended.append(operation.wait(30))
                except peerlane.Error as error:
                    ended.append(error.errno)

            def look():
                while not is_over.is_set():
                    try:
                        alone.statistics(), alone.progress(), alone.await_failure().done()
                    except ValueError as error:
                        ended.append(str(error))
                        return

            waits = [alone.await_failure, lambda: alone.irecv(0, np.zeros(8), 1), alone.await_failure]
            threads = [threading.Thread(target=wait_for, args=(begin,)) for begin in waits] + [threading.Thread(target=look) for _ in range(2)]
            kept = alone.irecv(0, np.zeros(8), 2)
            for one in threads:
                one.start()
            time.sleep(0.1)
            alone.close()
            with pytest.raises(peerlane.Error) as caught:
                kept.wait(30)
            assert caught.value.errno == errno.ECANCELED
            is_over.set()
            for one in threads:
                one.join(30)
            assert ended.count(errno.ECANCELED) == len(waits) and len(ended) <= len(threads), ended
            assert set(ended) <= {errno.ECANCELED, "the communicator is closed"}, ended
    with communicator.open(rank=0, size=1) as alone:
        refused = []

        def close_within(_):
            try:
                alone.close()
            except peerlane.Error as error:
                refused.append(error.errno)

        operation = alone.irecv(0, np.zeros(8), 3)
        operation.then(close_within)
        alone.isend(0, np.zeros(8), 3).wait(30)
        operation.wait(30)
        assert refused == [errno.EDEADLK]


def test_a_window_ends_with_its_communicator():
    with communicator.open(rank=0, size=1, host_only=True) as alone:
        first, second = alone.expose(np.zeros(8)), alone.expose(np.zeros(8))
        first.close()
    for window in (first, second):
        window.close()
        window.close()


def test_a_communicator_is_closed_beside_its_calls(tmp_path):
    job.run(closings, tmp_path)


def test_failures_are_told(tmp_path):
    job.run(failures, tmp_path)


def test_returns(tmp_path):
    with socket.socket() as reserved:  # until the end, so that nobody else is given this port
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(reserved.getsockname()[1]))
        job.run(returns, tmp_path)


def test_collectives(tmp_path):
    job.run(collectives, tmp_path)


def cancelled_collective(rank, rendezvous):
    """A task that waits for a collective is cancelled at rank 0, before rank 1 begins: it goes on, and those of all ranks do."""
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        sums = [np.zeros(1, np.float32) for _ in range(2)]

        async def reduce_all(number):
            await m.iall_reduce(np.full(1, rank + 1, np.float32), sums[number])

        async def impatient():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reduce_all(0), 0.05)
            m.send(1, np.zeros(1))

        if rank == 0:
            asyncio.run(impatient())
        else:
            m.recv(0, np.zeros(1), timeout=60)
            asyncio.run(reduce_all(0))
            assert sums[0][0] == 3
        asyncio.run(reduce_all(1))
        assert sums[1][0] == 3 and sums[0][0] == 3
        m.barrier(60)


def test_a_cancelled_task_leaves_its_collective(tmp_path):
    job.run(cancelled_collective, tmp_path)


def refusals(m, peer):
    with pytest.raises(peerlane.Timeout) as told:
        m.recv(peer, np.zeros(1), tag=999, timeout=0.01)
    assert isinstance(told.value, TimeoutError) and isinstance(told.value, peerlane.Error)
    with pytest.raises(ValueError, match="gaps"):
        m.send(peer, testing.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="read-only"):
        m.recv(peer, b"1234", timeout=0.01)
    with pytest.raises(ValueError, match="the key does not belong to a window"):
        m.put(b"short", 0, np.zeros(1))
    m.isend(peer, np.zeros(100, np.uint8), tag=997).wait(30)
    with pytest.raises(peerlane.Error) as told:
        m.recv(peer, np.zeros(10, np.uint8), tag=997, timeout=30)
    assert told.value.errno == errno.EMSGSIZE
    assert (told.value.source, told.value.tag, told.value.size_bytes) == (peer, 997, 100)
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
    counters = np.zeros(2, np.uint64)
    signals = m.expose(counters)
    signal_keys = m.all_gather(signals.key)
    m.put_signal(keys[peer], 32, values, 3, signal_key=signal_keys[peer], signal_offset=8).wait(30)
    assert m.wait_signal(signals.key, 8, 3, 30) == 3
    assert list(mine.get()[4:8]) == [peer + 1] * 4
    with pytest.raises(peerlane.Error, match="one process"):
        m.put_signal(keys[peer], 32, values, signal_key=signals.key, signal_offset=8)
    with pytest.raises(peerlane.Timeout):
        m.wait_signal(signals.key, 0, 1, 0.01)
    m.barrier(30)
    signals.close()
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


def test_communicator(tmp_path):
    job.run(exchange, tmp_path)


def sleeping_loops(rank, rendezvous):
    """Both loops sleep on the descriptor between messages; many tasks of a loop wait at once."""
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2, host_only=True) as m:

        async def talk(tag):
            value = np.zeros(1, np.int64)
            for i in range(100):
                if rank == i % 2:
                    value[0] = i
                    await m.wait_async(m.isend(1 - rank, value, tag))
                else:
                    assert await m.wait_async(m.irecv(1 - rank, value, tag)) == (1 - rank, tag, 8)
                    assert value[0] == i

        async def all_at_once():
            silent = asyncio.create_task(m.wait_async(m.irecv(1 - rank, np.zeros(1), 77)))
            await asyncio.wait_for(asyncio.gather(*(talk(tag) for tag in range(8))), 60)
            silent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await silent

        asyncio.run(all_at_once())
        m.barrier(20)


def test_a_loop_sleeps_until_messages_come(tmp_path):
    job.run(sleeping_loops, tmp_path)


@pytest.mark.parametrize("close", [lambda m: m.close(), lambda m: asyncio.to_thread(m.close)], ids=["task", "thread"])
def test_closing_ends_the_sleep_of_a_loop(close):
    """Also when another thread closes the communicator."""
    m = communicator.open(rank=0, size=1, host_only=True)

    async def wait_for_ever():
        tasks = [asyncio.create_task(m.wait_async(m.irecv(0, np.zeros(1), tag))) for tag in range(3)]
        await asyncio.sleep(0.05)
        if (closing := close(m)) is not None:
            await closing
        for outcome in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
            assert isinstance(outcome, peerlane.Error) and outcome.errno == errno.ECANCELED

    asyncio.run(wait_for_ever())


def test_the_loop_forgets_the_descriptor_of_a_closed_communicator():
    """A socket gets its number: with the number still in the loop, asyncio would not see the socket's events."""
    m = communicator.open(rank=0, size=1, host_only=True)

    async def time_out_and_talk():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(m.wait_async(m.irecv(0, np.zeros(1))), 0.05)
        number = m.event_descriptor()
        m.close()
        ends = socket.socketpair()
        assert number in [end.fileno() for end in ends]
        streams = [await asyncio.open_connection(sock=end) for end in ends]
        for (reader, _), (_, writer) in (streams, reversed(streams)):
            writer.write(b"a line\n")
            assert await asyncio.wait_for(reader.readline(), 60) == b"a line\n"
        for _, writer in streams:
            writer.close()

    asyncio.run(time_out_and_talk())


def test_a_closed_window_lets_its_memory_go():
    with communicator.open(rank=0, size=1, host_only=True) as m:
        memory = bytearray(64)
        window = m.expose(memory)
        with pytest.raises(BufferError):
            memory.extend(b"more")
        window.close()
        memory.extend(b"more")
        window.close()


def test_a_table_of_algorithms_is_a_file(monkeypatch, tmp_path):
    """A folder was no table without a word, a device without an end took all memory, and a pipe was waited for."""
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_text("# comment\n" * 200_000)
    for place, told in {tmp_path: "not a file", "/dev/zero": "not a file", pipe: "not a file", long: "longer than a table"}.items():
        monkeypatch.setenv("PEERLANE_COLLECTIVES_TABLE", str(place))
        with pytest.raises(peerlane.Error, match=told):
            communicator.open(rank=0, size=1, host_only=True)


def test_messages_repeat_names_that_are_not_utf_8(monkeypatch):
    """UnicodeDecodeError hid what was wrong."""
    for name, value, told in (("PEERLANE_COLLECTIVES_TABLE", b"/x\xff", r"/x\\xff"), ("PEERLANE_LINK_CPU", b"a\xfe", r"a\\xfe")):
        with monkeypatch.context() as changed:
            changed.setenv(name, os.fsdecode(value))
            with pytest.raises(peerlane.Error, match=told):
                communicator.open(rank=0, size=1, host_only=True)


def test_who_takes_part_must_be_said(monkeypatch):
    with pytest.raises(peerlane.Error):
        communicator.open(timeout=1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with communicator.open(timeout=1) as m:
        assert (m.rank, m.size) == (0, 1)


def test_operations_of_every_kind_in_one_wait():
    x, out = testing.array(np.arange(1 << 16, dtype=np.float32)), np.zeros(1 << 16, np.float32)
    here, sent = np.zeros(4, np.int32), np.arange(4, dtype=np.int32)
    with communicator.open(rank=0, size=1) as comm:
        codes = []
        received = comm.irecv(0, here, tag=3)
        copied = peerlane.copy_async(out, x)
        for each in (received, copied):
            each.then(codes.append)
        with pytest.raises(peerlane.Error) as twice:
            received.then(codes.append)
        assert twice.value.errno == errno.EEXIST
        with pytest.raises(peerlane.Timeout):
            peerlane.wait_all([received, copied], 0.01)
        assert peerlane.wait_any([received, copied], 30) == 1 and not received.done()
        comm.send(0, sent, tag=3, timeout=30)
        ends = peerlane.wait_all([received, copied], 30)
        assert ends == [(0, 3, 16), (-1, 0, out.nbytes)] and (here == sent).all() and np.array_equal(out, x.get())
        assert codes == [0, 0] and all(isinstance(each, peerlane.Operation) for each in (received, copied))
        late = comm.irecv(0, here, tag=4)
        late.then(codes.append)
        late.cancel()
        with pytest.raises(peerlane.Error):
            peerlane.wait_all([copied, late], 30)
        assert codes == [0, 0, errno.ECANCELED]
        copied.then(codes.append)       # it has ended: at once
        assert codes[-1] == 0 and len(codes) == 4
        dropped = comm.irecv(0, here, tag=5)
        dropped.then(codes.append)
        del dropped
        assert codes[-1] == errno.ECANCELED and len(codes) == 5
    with pytest.raises(ValueError):
        peerlane.wait_any([])


def test_a_function_that_raises_ends_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: seen.append(str(raised.exc_value)))
    x, out = testing.zeros(1 << 10), np.ones(1 << 10, np.float32)

    def fail(code):
        raise RuntimeError(f"ended with {code}")

    end = peerlane.copy_async(out, x)
    end.then(fail)
    end.wait(30)
    assert seen == ["ended with 0"] and (out == 0).all()
    with pytest.raises(TypeError):
        end.then(5)
