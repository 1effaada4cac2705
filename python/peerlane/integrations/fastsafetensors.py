# SPDX-License-Identifier: Apache-2.0
"""Weights from safetensors files to the GPU by DMA channels: a copier for fastsafetensors, found by its registry.

    from peerlane.integrations.fastsafetensors import PeerlaneFileLoader
    loader = PeerlaneFileLoader(None, "cuda:0")        # for fastsafetensors' SafeTensorsFileLoader
    loader.add_filenames({0: ["model.safetensors"]})
    weights = loader.copy_files_to_device()

Threads read the files into pinned memory, a channel takes each piece from there while the next one is read.
"""

import collections
import importlib.metadata
import os
import sys
import threading
from typing import Any

import numpy as np

from .. import _blocks
from .._host_pool import HostPool

KNOWN_RELEASES = ("0.3", "0.4", "0.5")  # whose files the tests were run with

CHUNK_BYTES = 8 << 20
_CHUNKS_PER_THREAD = 2  # one is filled while the other one leaves
_MAX_THREADS = 16


def check_release(version: str) -> None:
    """ImportError for a release whose copier interface this module was not tried with."""
    if ".".join(version.split(".")[:2]) not in KNOWN_RELEASES:
        raise ImportError(f"peerlane.integrations.fastsafetensors knows fastsafetensors {', '.join(KNOWN_RELEASES)} and not {version}: use one of "
                          "these, or fastsafetensors' own SafeTensorsFileLoader")


check_release(importlib.metadata.version("fastsafetensors"))

from fastsafetensors.copier import base as _base  # noqa: E402
from fastsafetensors.copier.registry import register_copier_constructor  # noqa: E402
from fastsafetensors.loader import BaseSafeTensorsFileLoader  # noqa: E402


class _File:
    """A file on its way: pieces that are left, and the first failure."""

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.left, self.lock, self.ended = 0, threading.Lock(), threading.Event()
        self.failure: BaseException | None = None

    def end_piece(self, failure: BaseException | None = None) -> None:
        with self.lock:
            self.failure = self.failure or failure
            self.left -= 1
            if self.left > 0:
                return
            os.close(self.fd)
        self.ended.set()


class _Work:
    """What the threads of a reader share. They hold this and not the reader, so that they end with it."""

    def __init__(self) -> None:
        self.pieces: collections.deque[tuple[_File, int, int, int]] = collections.deque()
        self.changed, self.stops = threading.Condition(), False

    def add(self, pieces: list[tuple[_File, int, int, int]]) -> None:
        with self.changed:
            self.pieces.extend(pieces)
            self.changed.notify_all()

    def next(self, may_wait: bool) -> tuple[_File, int, int, int] | None:
        with self.changed:
            while may_wait and not self.pieces and not self.stops:
                self.changed.wait()
            return self.pieces.popleft() if self.pieces else None

    def stop(self) -> None:
        with self.changed:
            self.stops = True
            self.changed.notify_all()

    def run(self, chunks: Any) -> None:
        """A thread: fills one of its chunks from a file while the other one is on its way to the GPU."""
        moving: collections.deque[tuple[Any, _File]] = collections.deque()
        turn = 0
        while True:
            piece = self.next(may_wait=not moving)
            while moving and (piece is None or len(moving) == len(chunks)):
                _finish(*moving.popleft())
            if piece is None:
                if self.stops:
                    return
                continue
            file, offset, size, address = piece
            chunk = chunks[turn % len(chunks)]
            turn += 1
            failure: BaseException | None = None
            try:
                if file.failure is None:  # the rest of a file that failed is not read
                    _read(file, offset, chunk[:size])
                    moving.append((_blocks.copy_block_list_async([address], [chunk.ctypes.data], size), file))
                    continue
            except Exception as error:
                failure = error
            file.end_piece(failure)


def _finish(operation: Any, file: _File) -> None:
    try:
        operation.wait()
    except Exception as error:
        file.end_piece(error)
    else:
        file.end_piece()


def _read(file: _File, offset: int, buffer: Any) -> None:
    done = 0
    while done < len(buffer):
        some = os.preadv(file.fd, [memoryview(buffer)[done:]], offset + done)
        if some == 0:
            raise OSError(f"{file.path} ends at byte {offset + done}, in the middle of a tensor")
        done += some


class Reader:
    """Threads with pinned memory, shared by the files of a loader."""

    def __init__(self, threads: int = 0, chunk_bytes: int = CHUNK_BYTES, device: int = 0) -> None:
        self.threads = threads or max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
        self.chunk_bytes = chunk_bytes
        pool = HostPool(self.threads * _CHUNKS_PER_THREAD * chunk_bytes, device=device)
        pool.wait()
        memory = pool.array((self.threads, _CHUNKS_PER_THREAD, chunk_bytes))
        self._work = _Work()
        for chunks in memory:
            threading.Thread(target=self._work.run, args=(chunks,), name="peerlane-weights", daemon=True).start()

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self._work.stop()

    def submit(self, path: str, runs: list[tuple[int, int]], address: int) -> _File:
        """Begins to move each run [start, end) of the file to `address` + (start - the first run's start)."""
        file = _File(path)
        pieces = [(file, offset, min(self.chunk_bytes, end - offset), address + offset - runs[0][0])
                  for start, end in runs for offset in range(start, end, self.chunk_bytes)]
        file.left = len(pieces) + 1
        self._work.add(pieces)
        file.end_piece()
        return file


class PeerlaneCopier(_base.CopierInterface):  # type: ignore[misc]
    """A file's copier, as fastsafetensors calls it."""

    def __init__(self, metadata: Any, device: Any, framework: Any, reader: Reader) -> None:
        self.metadata, self._device, self._framework, self._reader = metadata, device, framework, reader
        self._runs: list[tuple[int, int]] | None = None
        self._file: _File | None = None

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        """Only these bytes of the file are read; where tensors lie in the buffer does not change."""
        self._runs = _base.validated_byte_ranges(self.metadata, byte_ranges)

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        begin = self.metadata.header_length
        buffer = self._framework.alloc_tensor_memory(self.metadata.size_bytes - begin, self._device)
        try:
            # The memory may have had another owner, whose last kernels are still queued.
            if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
                torch.cuda.current_stream(self._device.index).synchronize()
            runs = [(begin, self.metadata.size_bytes)] if self._runs is None else self._runs
            if runs and runs[-1][1] > runs[0][0]:
                self._file = self._reader.submit(self.metadata.src, runs, buffer.get_base_address() + runs[0][0] - begin)
        except BaseException:
            self._framework.free_tensor_memory(buffer, self._device)
            raise
        return buffer

    def wait_io(self, gbuf: Any, dtype: Any = None, noalign: bool = False, owner: Any = None) -> Any:
        self.finish_io()
        more = {} if dtype is None else {"dtype": dtype}
        if owner is not None:  # since 0.5
            more["owner"] = owner
        return self.metadata.get_tensors(gbuf, self._device, self.metadata.header_length, **more)

    def finish_io(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        file.ended.wait()
        if file.failure is not None:
            raise file.failure


def new_copier(device: Any, *, max_threads: int = 0, **_: Any) -> Any:
    """A factory, as register_copier_constructor takes it."""
    # Its threads end with the last copier of the loader.
    reader = Reader(min(max_threads, _MAX_THREADS), device=getattr(device, "index", None) or 0)

    def construct(metadata: Any, device: Any, framework: Any) -> PeerlaneCopier:
        return PeerlaneCopier(metadata, device, framework, reader)

    return construct


def _register(name: str) -> None:
    try:
        register_copier_constructor(name, PeerlaneCopier)(new_copier)
    except TypeError:  # before 0.4
        register_copier_constructor(name)(new_copier)


def use_everywhere() -> None:
    """Also for loaders that ask for fastsafetensors' own copiers to a GPU ("gds" and "nogds"), in this process."""
    for name in ("gds", "nogds"):
        _register(name)


_register("peerlane")


class PeerlaneFileLoader(BaseSafeTensorsFileLoader):  # type: ignore[misc]
    """fastsafetensors' loader with this copier. `pg`: a process group or None; `device`: "cuda:0"; `max_threads`: that read files."""

    def __init__(self, pg: Any = None, device: str = "cuda:0", framework: str = "pytorch", **more: Any) -> None:
        from fastsafetensors.frameworks import get_framework_op

        chosen = get_framework_op(framework)
        super().__init__(pg, chosen.get_device(device, chosen.get_process_group(pg)), "peerlane", framework=framework, **more)
