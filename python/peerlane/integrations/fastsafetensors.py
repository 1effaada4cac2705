# SPDX-License-Identifier: Apache-2.0
"""Loads weights from safetensors files to the GPU with DMA channels: a copier for fastsafetensors.

    from peerlane.integrations.fastsafetensors import PeerlaneFileLoader
    loader = PeerlaneFileLoader(None, "cuda:0")        # instead of fastsafetensors' SafeTensorsFileLoader
    loader.add_filenames({0: ["model.safetensors"]})
    weights = loader.copy_files_to_device()

Threads read the files into pinned memory, piece by piece. A DMA channel copies each piece to the GPU while the thread reads the next
one. Importing this module registers the copier as "peerlane".
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

KNOWN_RELEASES = ("0.3", "0.4", "0.5")  # the releases that the tests were run with

CHUNK_BYTES = 8 << 20
_CHUNKS_PER_THREAD = 2  # one is filled while the other one is copied
_MAX_THREADS = 16


def check_release(version: str) -> None:
    """Raises ImportError if this module was not tested with this release of fastsafetensors, whose copier interface changes."""
    if ".".join(version.split(".")[:2]) not in KNOWN_RELEASES:
        raise ImportError(f"peerlane.integrations.fastsafetensors supports fastsafetensors {', '.join(KNOWN_RELEASES)}, not {version}: use one of "
                          "these, or fastsafetensors' own SafeTensorsFileLoader")


check_release(importlib.metadata.version("fastsafetensors"))

from fastsafetensors.copier import base as _base  # noqa: E402
from fastsafetensors.copier.registry import register_copier_constructor  # noqa: E402
from fastsafetensors.loader import BaseSafeTensorsFileLoader  # noqa: E402


class _File:
    """A file that is being loaded: the number of pieces in progress, and the first failure. Closes the file after the last piece."""

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.left, self.lock, self.ended = 0, threading.Lock(), threading.Event()
        self.failure: BaseException | None = None

    def end_piece(self, failure: BaseException | None = None) -> None:
        """Counts a piece as ended, also if it failed. Any thread."""
        with self.lock:
            self.failure = self.failure or failure
            self.left -= 1
            if self.left > 0:
                return
            os.close(self.fd)
        self.ended.set()


class _Work:
    """The queue that the threads of a Reader share. They keep a reference to it and not to the Reader, so that dropping the Reader
    ends them."""

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
        """Body of a thread: reads a piece into one of its `chunks` while the other chunk is copied to the GPU."""
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
            failure: BaseException | None = None
            try:
                if file.failure is None:  # after a failure, the rest of the file is not read
                    _read(file, offset, chunk[:size])
                    moving.append((_blocks.copy_block_list_async([address], [chunk.ctypes.data], size), file))
                    turn += 1  # only now: after a piece that failed, the next chunk may still be on its way
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
    """Threads that read files, each with its own pinned memory. The files of a loader share one Reader.

    `threads`: 0 means half of the CPUs that this process may use, at most 16. `chunk_bytes`: size of a piece. The pinned memory is
    two chunks for each thread, near GPU `device`. The threads end when the Reader is dropped.
    """

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
        """Begins to load byte ranges [start, end) of the file; does not wait.

        The first range goes to the device address `address`; the distances between ranges stay those in the file. The memory must
        exist until the returned file's `ended` is set; its `failure` is then the first error, or None.
        """
        file = _File(path)
        pieces = [(file, offset, min(self.chunk_bytes, end - offset), address + offset - runs[0][0])
                  for start, end in runs for offset in range(start, end, self.chunk_bytes)]
        file.left = len(pieces) + 1
        self._work.add(pieces)
        file.end_piece()
        return file


class PeerlaneCopier(_base.CopierInterface):  # type: ignore[misc]
    """Copies one file to the GPU; fastsafetensors creates and calls it. Its methods are those of fastsafetensors' CopierInterface."""

    def __init__(self, metadata: Any, device: Any, framework: Any, reader: Reader) -> None:
        self.metadata, self._device, self._framework, self._reader = metadata, device, framework, reader
        self._runs: list[tuple[int, int]] | None = None
        self._file: _File | None = None

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        """Limits reading to these ranges of bytes of the file. The positions of tensors in the buffer stay the same."""
        self._runs = _base.validated_byte_ranges(self.metadata, byte_ranges)

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        """Allocates GPU memory for the tensors, begins to load them, and returns the buffer. Both arguments are ignored."""
        begin = self.metadata.header_length
        buffer = self._framework.alloc_tensor_memory(self.metadata.size_bytes - begin, self._device)
        try:
            # The allocator may return memory that kernels in the current stream still use.
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
        """Waits until the file is loaded, and returns its tensors by name."""
        self.finish_io()
        more = {} if dtype is None else {"dtype": dtype}
        if owner is not None:  # since 0.5
            more["owner"] = owner
        return self.metadata.get_tensors(gbuf, self._device, self.metadata.header_length, **more)

    def finish_io(self) -> None:
        """Waits until the file is loaded. Raises the error of the first piece that failed."""
        file, self._file = self._file, None
        if file is None:
            return
        file.ended.wait()
        if file.failure is not None:
            raise file.failure


def new_copier(device: Any, *, max_threads: int = 0, **_: Any) -> Any:
    """Returns the function that makes a copier for each file of a loader; called by fastsafetensors' registry.

    `max_threads`: threads that read files; 0: see Reader. All copiers share one Reader, which ends with the last of them.
    """
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
    """Makes all loaders of this process use Peerlane, also those that ask for fastsafetensors' own copiers ("gds" and "nogds")."""
    for name in ("gds", "nogds"):
        _register(name)


_register("peerlane")


class PeerlaneFileLoader(BaseSafeTensorsFileLoader):  # type: ignore[misc]
    """fastsafetensors' loader with Peerlane's copier.

    `pg`: a process group, or None for a single process. `device`: such as "cuda:0". `max_threads`: threads that read files. Other
    arguments are those of fastsafetensors' BaseSafeTensorsFileLoader.
    """

    def __init__(self, pg: Any = None, device: str = "cuda:0", framework: str = "pytorch", **more: Any) -> None:
        from fastsafetensors.frameworks import get_framework_op

        chosen = get_framework_op(framework)
        super().__init__(pg, chosen.get_device(device, chosen.get_process_group(pg)), "peerlane", framework=framework, **more)
