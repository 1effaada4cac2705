# SPDX-License-Identifier: Apache-2.0
"""peerlane.top on processes that send messages, signal by streams and serve a store: every column shows what they have done."""

import os
import re
import select
import subprocess

import job
import numpy as np
import peerlane
import pytest
from peerlane import _native, communicator, triggered, testing, top

SMALL, LARGE = 64, 1 << 20


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where processes that start from now on publish their numbers."""
    published = tmp_path / "published"
    published.mkdir()
    monkeypatch.setenv("PEERLANE_STATISTICS", "1")
    monkeypatch.setenv("PEERLANE_STATISTICS_FOLDER", str(published))
    return published


def look(before=None):
    """({process id: top.Process}, snapshots for the next look)."""
    snapshots, _ = top.collect(os.environ["PEERLANE_STATISTICS_FOLDER"])
    return {p.process_id: p for p in top.combine(snapshots, before or {})}, {one.path: one for one in snapshots}


def shown(process):
    """{(group, way): (count, bytes, count a second, bytes a second)} of the text view's lines, and its first line."""
    first, *rest = top.as_text([process], []).splitlines()
    return {tuple(cells[:2]): cells[2:] for cells in (re.split(r"\s{2,}", line.strip()) for line in rest)}, first


def exchange(m, peer, sends, receives):
    """One message of each kind of memory, both ways at once."""
    for tag, (x, y) in enumerate(zip(sends, receives)):
        asked = m.irecv(peer, y, tag)
        m.send(peer, x, tag)
        asked.wait(60)
        host = y if isinstance(y, np.ndarray) else y.get()
        assert (host == 1 + peer).all()


def send_every_way(rank, rendezvous):
    """Small, between host memories, between GPU memories, from host to GPU memory, and to oneself: five ways."""
    peer = 1 - rank
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        pids = [int.from_bytes(each, "little") for each in m.all_gather(os.getpid().to_bytes(8, "little"))]
        _, before = look()
        m.barrier(60)  # what the other rank counts comes behind this rank's first look
        host = lambda size, value: np.full(size, value, np.uint8)  # noqa: E731
        gpu = lambda size, value: testing.array(host(size, value), device=rank)  # noqa: E731
        exchange(m, peer, [host(SMALL, 1 + rank), host(LARGE, 1 + rank), gpu(LARGE, 1 + rank), host(LARGE, 1 + rank)],
                 [host(SMALL, 0), host(LARGE, 0), gpu(LARGE, 0), gpu(LARGE, 0)])
        to_myself, mine = host(SMALL, 9), host(SMALL, 0)
        asked = m.irecv(rank, mine, 77)
        m.send(rank, to_myself, 77)
        asked.wait(60)
        m.barrier(60)
        seen, _ = look(before)
        assert set(seen) >= set(pids)
        told = m.statistics()
        for pid in pids:
            lines, first = shown(seen[pid])
            for way, size in (("eager", SMALL), ("pulled", LARGE), ("dma", LARGE), ("shared_ring", LARGE), ("self", SMALL)):
                count, volume, rate, speed = lines["messages", way]
                assert int(count) == seen[pid].values[f"messages.{way}.count"] >= 1, way
                assert seen[pid].values[f"messages.{way}.bytes"] >= size and volume.endswith(" B" if size == SMALL else "MB"), way
                assert seen[pid].rates[f"messages.{way}.bytes"] > 0 and rate.endswith("/s") and speed.endswith("/s"), way
            assert seen[pid].values["messages.jobs"] == 1 and f"({pid})" in first
        mine_seen = seen[os.getpid()].values
        for way in ("eager", "self", "dma", "shared_ring"):
            assert mine_seen[f"messages.{way}.count"] == told[way], way
        m.barrier(60)
    assert look()[0][os.getpid()].values["messages.jobs"] == 0


def send_by_the_network(rank, rendezvous):
    with communicator.open(rendezvous=rendezvous, rank=rank, size=2) as m:
        exchange(m, 1 - rank, [np.full(LARGE, 1 + rank, np.uint8)], [np.zeros(LARGE, np.uint8)])
        m.barrier(60)
        values = look()[0][os.getpid()].values
        assert (values["messages.network.count"], values["messages.network.bytes"]) == (1, LARGE)
        m.barrier(60)


def signal(rank, rendezvous):
    """Three puts of a KiB, a signal without a put, and four waits by one channel."""
    peer = 1 - rank
    testing.driver().enter(rank)
    x, inbox, stream = testing.zeros(256, device=rank), testing.zeros(256, device=rank), testing.Stream(rank)
    with triggered.open(rendezvous=rendezvous, rank=rank, size=2, device=rank) as s:
        mine = s.expose(inbox)
        theirs = s.import_window(s.all_gather(mine.key)[peer])
        channel = s.connect(peer, 1)
        for _ in range(3):
            channel.put_signal(stream, theirs, 0, x)
            channel.wait_signal(stream)
        channel.signal(stream)
        channel.wait_signal(stream)
        stream.synchronize()
        lines, first = shown(look()[0][os.getpid()])
        assert lines["stream operations", "puts"][:2] == ["4", "3.07 kB"] and lines["stream operations", "waits"][0] == "4"
        assert first.endswith("1 channels")
        s.barrier()
    del channel
    assert look()[0][os.getpid()].values["streams.channels"] == 0


def test_communicator(folder, tmp_path):
    job.run(send_every_way, tmp_path)


def test_messages_by_the_network(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PEERLANE_LINK_PATH", "network")
    job.run(send_by_the_network, tmp_path)


def test_triggered(folder, tmp_path):
    job.run(signal, tmp_path)


def test_store_server(folder, tmp_path):
    if not (_native.FOLDER / "libpeerlane_store.so.0").exists():
        pytest.skip("the store was not built")
    server = subprocess.Popen([_native.program(), "store", "serve", "--data", tmp_path / "data", "--listen", "none", "--arena", "64M",
                               "--chunk", "64M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert server.stdout is not None and select.select([server.stdout], [], [], 60)[0], "the server says nothing"
        with peerlane.store.open(str(tmp_path / "data" / "store.sock")) as store:
            pool = store.create_pool("p", durability="volatile")
            pool.put("first", b"12345678")
            _, before = look()
            for i in range(3):
                pool.put(f"k{i}", b"12345678")
            for _ in range(2):
                pool.get("k0", bytearray(8))
            pool.erase("k1")
            process = look(before)[0][server.pid]
            assert [process.values[f"store.{each}"] for each in ("puts", "gets")] == [4, 2] and process.values["store.other_requests"] >= 1
            assert process.rates["store.puts"] / 3 == pytest.approx(process.rates["store.gets"] / 2)
            words = next(iter(line for line in top.as_text([process], []).splitlines() if line.strip().startswith("store")))
            assert re.search(r"store +[\d.]+\S* ?k?M? puts, .* gets, .* others a second", words), words
    finally:
        server.terminate()
        server.wait(60)
    assert not [path for path in folder.iterdir() if f"-{server.pid}-" in path.name]
