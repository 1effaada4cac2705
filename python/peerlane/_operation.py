# SPDX-License-Identifier: Apache-2.0
"""What goes on after its call (copies, messages, puts and gets), and waits for many."""

from collections.abc import Iterable

from . import _gpu, _core  # _gpu first: it is what _core runs on

__all__ = ["Operation", "wait_all", "wait_any"]

Operation = _core.Operation


def wait_all(operations: Iterable[Operation], timeout: float | None = None) -> list[tuple[int, int, int]]:
    """Waits until all have ended, whatever they are; their (source, tag, size_bytes). Raises the first failure in the list once all
    have ended. Seconds; Timeout: the ones that have not ended go on."""
    return _core.wait_all(list(operations), timeout)


def wait_any(operations: Iterable[Operation], timeout: float | None = None) -> int:
    """Waits until one has ended; its index. Its wait() tells how. Seconds; Timeout: all go on."""
    return _core.wait_any(list(operations), timeout)
