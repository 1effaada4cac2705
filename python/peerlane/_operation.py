# SPDX-License-Identifier: Apache-2.0
"""Operations that continue after their call (copies, messages, puts and gets), and waits for many of them."""

from collections.abc import Iterable

from . import _gpu, _core  # _gpu first: it is what _core runs on

__all__ = ["Operation", "wait_all", "wait_any"]

Operation = _core.Operation


def wait_all(operations: Iterable[Operation], timeout: float | None = None) -> list[tuple[int, int, int]]:
    """Waits until all operations of any kind have ended, and returns their (source, tag, size_bytes). Then it raises the first failure
    in the list, if there is one. The limit is in seconds; after Timeout the others continue."""
    return _core.wait_all(list(operations), timeout)


def wait_any(operations: Iterable[Operation], timeout: float | None = None) -> int:
    """Waits until one operation has ended and returns its index. Its wait() returns the outcome. The limit is in seconds; after
    Timeout all continue."""
    return _core.wait_any(list(operations), timeout)
