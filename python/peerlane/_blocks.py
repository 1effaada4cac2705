# SPDX-License-Identifier: Apache-2.0
"""Many blocks between paged tensors in one call, for example the pages of a KV cache between GPU and host."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._arguments import truth
from ._types import After, AnyArray

__all__ = ["copy_block_list", "copy_block_list_async", "copy_blocks", "copy_blocks_async"]


def copy_blocks(dst: AnyArray | Sequence[AnyArray], src: AnyArray | Sequence[AnyArray], dst_indices: Any = None, src_indices: Any = None,
                *, urgent: bool = False, after: After = "auto") -> None:
    """For each i and each tensor of both sides: dst[dst_indices[i]] = src[src_indices[i]]; complete on return.

    Each side is a tensor or a list of tensors of one shape (layers, K and V). The first dimension counts blocks, and each block is
    contiguous. At least one side is GPU memory; host memory should be pinned. The indices apply to all tensors of their side. They are
    NumPy arrays or CPU tensors of int32 or int64, which are read in place, or any sequence of integers; None: 0, 1, 2, ... Everything
    is checked before anything moves: for an index outside the tensor, or a block that is written twice or both read and written, an
    Error with EINVAL names the place. `urgent`: do not queue behind other long lists. `after`: see copy().
    """
    copy_blocks_async(dst, src, dst_indices, src_indices, urgent=urgent, after=after).wait()


def copy_blocks_async(dst: AnyArray | Sequence[AnyArray], src: AnyArray | Sequence[AnyArray], dst_indices: Any = None,
                      src_indices: Any = None, *, urgent: bool = False, after: After = "auto") -> _core.Operation:
    """Begins copy_blocks(): `await` the operation, wait(), or make_wait(stream). The operation keeps the tensors until it has ended.
    You may reuse the indices when the call returns."""
    return _core.copy_blocks_async(dst, src, _integers("dst_indices", dst_indices, np.int64), _integers("src_indices", src_indices, np.int64),
                                   truth("urgent", urgent), after)


def copy_block_list(dst: Any, src: Any, sizes: Any, *, urgent: bool = False, after: Any = None) -> None:
    """For each i: sizes[i] bytes from the address src[i] to the address dst[i]; complete on return.

    Addresses and sizes are NumPy arrays or CPU tensors of int64 or uint64, which are read in place, or any sequence of integers. If
    `sizes` is one integer, it applies to all blocks. The destinations are either all GPU memory or all host memory, and so are the
    sources. Everything is checked before anything moves: for memory that was freed, a block that leaves its allocation, or bytes that
    two blocks write, an Error with EINVAL names the block. Addresses do not show which stream uses them: if a stream still works on
    them, give it as `after`.
    """
    copy_block_list_async(dst, src, sizes, urgent=urgent, after=after).wait()


def copy_block_list_async(dst: Any, src: Any, sizes: Any, *, urgent: bool = False, after: Any = None) -> _core.Operation:
    """Begins copy_block_list(): `await` the operation, wait(), or make_wait(stream). Keep the memory until it has ended. You may reuse
    the arrays when the call returns."""
    if isinstance(after, str):
        raise ValueError("copy_block_list: after: pass a stream or None, because addresses do not name a stream")
    if not isinstance(sizes, (int, np.integer)):
        sizes = _addresses("sizes", sizes)
    return _core.copy_block_list_async(_addresses("dst", dst), _addresses("src", src), sizes, truth("urgent", urgent), after)


def _addresses(role: str, numbers: Any) -> Any:
    return _integers(role, numbers, np.uint64)


def _integers(role: str, numbers: Any, dtype: Any) -> Any:
    """Converts lists, tuples and ranges to an array of `dtype`. Returns arrays and tensors as they are."""
    if not isinstance(numbers, (list, tuple, range)):
        return numbers
    given = np.asarray(numbers)
    if given.size == 0:
        return np.empty(0, dtype)
    if given.dtype.kind not in "iu":
        raise TypeError(f"{role}: expected integers of at most 64 bits, got {given.dtype}")
    limits = np.iinfo(dtype)
    if int(given.min()) < limits.min or int(given.max()) > limits.max:
        raise ValueError(f"{role}: a number is outside of {limits.min} to {limits.max}")
    return given.astype(dtype, copy=False)
