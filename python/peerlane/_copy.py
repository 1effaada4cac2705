# SPDX-License-Identifier: Apache-2.0
"""Copies and fills between NumPy arrays and GPU tensors of any library."""

import operator
from typing import Any

import numpy as np

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._core import copy
from ._types import After, AnyArray, Direction

__all__ = ["copy", "copy_async", "explain", "fill"]

_FILL_CHUNK_BYTES = 4 << 20


def copy_async(dst: AnyArray, src: AnyArray, *, after: After = "auto") -> _core.Operation:
    """Starts a copy: `await` the operation, wait(), or make_wait(stream). The operation keeps both tensors. Until it has ended, do not
    write the source, and do not read or write the destination."""
    return _core.copy_async(dst, src, after)


def fill(dst: AnyArray, value: complex, *, after: After = "auto") -> None:
    """Sets every element of `dst` to the number `value`; complete on return."""
    element = _core.fill_bytes(dst, value, after)
    if element is None:
        return
    location, _, shape, nbytes, address, is_contiguous = _core.look_at(dst)
    if location == "host":
        np.asarray(dst)[...] = value
    elif not is_contiguous or nbytes <= _FILL_CHUNK_BYTES:
        copy(dst, _repeated(element, shape), after=after)
    else:
        _fill_large(address, nbytes, element)


def _repeated(element: bytes, shape: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
    out = np.empty(shape, f"V{len(element)}")
    out[...] = np.void(element)
    return out


def _fill_large(address: int, nbytes: int, element: bytes) -> None:
    """Copies the first chunk from the host; then the GPU copies what is filled until all is filled."""
    done = _FILL_CHUNK_BYTES
    copy((address, done), _repeated(element, done // len(element)).view("u1"), after=None)
    while done < nbytes:
        step = min(done, nbytes - done)
        copy((address + done, step), (address, step), after=None)
        done += step


def explain(direction: Direction, size_bytes: int, *, pageable: bool = True) -> str:
    """Returns which method a copy of this size uses and why, as readable text. `direction`: "to_device", "to_host" or "on_device";
    `pageable`: the host memory is not pinned (for "on_device": the GPUs differ)."""
    if direction not in ("to_device", "to_host", "on_device"):
        raise ValueError(f"explain: direction is \"to_device\", \"to_host\" or \"on_device\", not {direction!r}")
    size = operator.index(size_bytes)
    if not 0 <= size < 1 << 64:
        raise ValueError(f"explain: {size_bytes} is not a number of bytes")
    return _core.explain(direction, size, bool(pageable))
