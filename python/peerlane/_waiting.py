# SPDX-License-Identifier: Apache-2.0
"""Waiting from asyncio for what has no file descriptor."""

import asyncio
from collections.abc import Generator
from typing import Any

_TURNS = 50         # of the loop, before anything sleeps: most copies are over by then
_LONGEST_NAP = 1e-3  # seconds; a nap is as long as what has passed before it, so it adds at most half


def until_done(what: Any) -> Generator[Any, None, Any]:
    """`await` for objects with done() and a blocking wait() that any thread may call."""
    for _ in range(_TURNS):
        if what.done():
            return what.wait()
        yield from asyncio.sleep(0).__await__()
    return (yield from asyncio.get_running_loop().run_in_executor(None, what.wait).__await__())


def while_polled(what: Any) -> Generator[Any, None, Any]:
    """The same for what advances only inside calls, and only by one thread."""
    nap = 0.0
    turns = 0
    while not what.done():
        turns += 1
        if turns > _TURNS:
            nap = min(nap * 1.5 + 1e-5, _LONGEST_NAP)
        yield from asyncio.sleep(nap).__await__()
    return what.wait()
