# SPDX-License-Identifier: Apache-2.0
"""Host memory for copies, pinned in the background."""

import math
from types import TracebackType
from typing import Any

import numpy as np

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._arguments import extents, number

__all__ = ["HostPool"]


class HostPool(_core.HostPoolBase):
    """A large range of host memory near a GPU. It is usable at once, and becomes faster while it is pinned in the background.

        pool = peerlane.HostPool(64 << 30)
        pages = pool.array((n_pages, 2, 16, 8, 128), np.float16)    # or pool.tensor(..., torch.float16)
        peerlane.copy_blocks(pages, cache, page_numbers, block_numbers)

    It uses huge pages if the kernel offers them, on the NUMA node of `device`. A thread pins it piece by piece. Memory that is not
    pinned yet is ordinary memory, with slower copies. The pool is a buffer: use it with np.frombuffer, memoryview and
    torch.frombuffer. The memory lives as long as the pool or a view of it. A forked child does not have it.

    Error with ENOMEM: more than this process may use. `piece_bytes`: bytes pinned at a time, a power of two; 0: 256 MiB.
    """

    def __init__(self, size_bytes: int, *, device: int = 0, piece_bytes: int = 0) -> None:
        super().__init__(number("size_bytes", size_bytes), number("device", device, 0, 1023), number("piece_bytes", piece_bytes))

    def array(self, shape: int | tuple[int, ...], dtype: Any = np.uint8, offset: int = 0) -> np.ndarray[Any, Any]:
        """Returns a NumPy array in the pool, `offset` bytes from its beginning."""
        shape = extents("shape", shape)
        kind = np.dtype(dtype)
        self._must_fit(math.prod(shape) * kind.itemsize, offset)
        memory: Any = self  # a buffer, which the compiled class's stub cannot say before Python 3.12
        flat: np.ndarray[Any, Any] = np.frombuffer(memory, kind, math.prod(shape), offset)
        return flat.reshape(shape)

    def tensor(self, shape: int | tuple[int, ...], dtype: Any = None, offset: int = 0) -> Any:
        """Returns a CPU tensor of PyTorch in the pool; `dtype` is a type of torch, by default torch.uint8."""
        import torch

        shape = extents("shape", shape)
        dtype = torch.uint8 if dtype is None else dtype
        self._must_fit(math.prod(shape) * dtype.itemsize, offset)
        return torch.frombuffer(self, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)

    def _must_fit(self, size_bytes: int, offset: int) -> None:
        if offset < 0 or size_bytes <= 0 or offset + size_bytes > self.size_bytes:
            raise ValueError(f"{size_bytes} bytes at {offset}: the host pool has {self.size_bytes}")

    def __len__(self) -> int:
        return self.size_bytes

    def __enter__(self) -> "HostPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<peerlane.HostPool, closed>"
        return f"<peerlane.HostPool of {self.size_bytes} bytes, {self.pinned_bytes} pinned, NUMA node {self.numa_node}>"
