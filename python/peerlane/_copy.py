# SPDX-License-Identifier: Apache-2.0
"""Copies and fills between NumPy arrays and GPU tensors of any library."""

from typing import Any

import numpy as np

from . import _gpu, _core  # _gpu first: it is what _core runs on

Completion = _core.Completion

_FILL_CHUNK_BYTES = 4 << 20


def copy(dst: object, src: object, *, after: object = "auto") -> None:
    """Copies `src` into `dst`, of the same shape and dtype, by the way that costs least; complete on return.

    Each may be a NumPy array, a PyTorch, CuPy, Numba or JAX array, a Mapping, or (device pointer, bytes). `after`: "auto" waits
    for what the tensors' libraries have queued on their current streams, None for nothing (0.5 us less), a stream for that
    stream. GPU work launched afterwards sees the data. Other Python threads run meanwhile.
    """
    if not _core.copy(dst, src, after):
        np.copyto(np.asarray(dst), np.asarray(src))


def copy_async(dst: object, src: object, *, after: object = "auto") -> Completion:
    """Begins such a copy. The end is a Completion: `await` it, wait(), or make_wait(stream). Both tensors are kept until then
    and must not be written (the source) or touched (the destination) meanwhile."""
    return _core.copy_async(dst, src, after)


def fill(dst: object, value: complex, *, after: object = "auto") -> None:
    """Sets every element of `dst` to the number `value`; complete on return."""
    element = _core.fill_bytes(dst, value, after)
    if element is None:
        return
    where, _, shape, nbytes, address, is_contiguous = _core.look_at(dst)
    if where == "host":
        np.asarray(dst)[...] = value
    elif not is_contiguous or nbytes <= _FILL_CHUNK_BYTES:
        _core.copy(dst, _repeated(element, shape), after)
    else:
        _fill_large(address, nbytes, element)


def _repeated(element: bytes, shape: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
    out = np.empty(shape, f"V{len(element)}")
    out[...] = np.void(element)
    return out


def _fill_large(address: int, nbytes: int, element: bytes) -> None:
    """A first chunk from the host, then the GPU doubles it."""
    done = _FILL_CHUNK_BYTES
    _core.copy((address, done), _repeated(element, done // len(element)).view("u1"), None)
    while done < nbytes:
        step = min(done, nbytes - done)
        _core.copy((address + done, step), (address, step), None)
        done += step


def explain(direction: str, nbytes: int, *, pageable: bool = True) -> str:
    """Which way a copy of this size would take and why, in lines for people. `direction`: "to_device", "to_host" or
    "on_device"; `pageable`: the host memory is not pinned (on the device: the GPUs differ)."""
    return _core.explain(direction, nbytes, pageable)
