# SPDX-License-Identifier: Apache-2.0
"""Waiting from asyncio for what has no file descriptor."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from typing import Any

__all__ = ["close", "send", "steps", "throw"]

_TURNS = 50         # of the loop, before anything sleeps: most copies are over by then
_LONGEST_NAP = 1e-3  # seconds; naps grow by half, so they add about half to what has passed


def while_polled(what: Any) -> Generator[Any, None, Any]:
    """`await` for objects with done() and wait(), of which done() does not block."""
    nap = 0.0
    turns = 0
    while not what.done():
        turns += 1
        if turns > _TURNS:
            nap = min(nap * 1.5 + 1e-5, _LONGEST_NAP)
        yield from asyncio.sleep(nap).__await__()
    return what.wait()


def until_done(what: Any) -> Generator[Any, None, Any]:
    """The same for what cannot be called off: where the task is cancelled, a thread keeps it until its end, since dropping it would
    block the loop."""
    try:
        return (yield from while_polled(what))
    except (asyncio.CancelledError, GeneratorExit):
        if not what.done():
            threading.Thread(target=_keep, args=(what,), name="peerlane-copy", daemon=True).start()
        raise


def _keep(what: Any) -> None:
    with contextlib.suppress(OSError):  # whoever waits for it is told
        while not what.done():
            time.sleep(_LONGEST_NAP)


def steps(operation: Any) -> Generator[Any, None, Any]:
    """`await` for an Operation."""
    return while_polled(operation) if operation.can_cancel else until_done(operation)


# An operation is a coroutine by these methods; its steps begin with the first of them.


def _begun(operation: Any) -> Generator[Any, None, Any]:
    if not hasattr(operation, "_steps"):
        operation._steps = steps(operation)
    begun: Generator[Any, None, Any] = operation._steps
    return begun


def send(operation: Any, value: Any) -> Any:
    return _begun(operation).send(value)


def throw(operation: Any, *exception: Any) -> Any:
    return _begun(operation).throw(*exception)


def close(operation: Any) -> None:
    if hasattr(operation, "_steps"):
        operation._steps.close()
