# SPDX-License-Identifier: Apache-2.0
"""Waiting from asyncio: by turns of the loop at first, then asleep on a descriptor where there is one, else by naps."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Generator
from typing import Any

__all__ = ["close", "send", "steps", "throw"]

_TURNS = 50         # of the loop, before anything sleeps: most copies are over by then
_LONGEST_SLEEP = 0.02  # seconds: another task or thread may see the end first, which closes the descriptor
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


def asleep(operation: Any) -> Generator[Any, None, Any]:
    """`await` for copies: the loop sleeps on their descriptor, which an interrupt of the GPU wakes."""
    for _ in range(_TURNS):
        if operation.done():
            return operation.wait()
        yield from asyncio.sleep(0).__await__()
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.dup(operation.descriptor())  # the operation's own is closed at its end
    except OSError:  # it has ended, a function waits for it, or there are no descriptors left
        return (yield from while_polled(operation))
    try:
        while not operation.done():
            woken = loop.create_future()
            try:
                loop.add_reader(descriptor, _wake, woken)
            except NotImplementedError:  # a loop without readers
                return (yield from while_polled(operation))
            look_again = loop.call_later(_LONGEST_SLEEP, _wake, woken)
            try:
                if not operation.done():  # what came before the descriptor was watched wakes nobody
                    yield from woken.__await__()
            finally:
                look_again.cancel()
                loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
    return operation.wait()


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


def until_done(what: Any) -> Generator[Any, None, Any]:
    """The same for what cannot be called off: where the task is cancelled, a thread keeps it until its end, since dropping it would
    block the loop, as it does where no thread can be started."""
    try:
        return (yield from asleep(what) if what.has_descriptor else while_polled(what))
    except (asyncio.CancelledError, GeneratorExit):
        if not what.done():
            try:
                threading.Thread(target=_keep, args=(what,), name="peerlane-copy", daemon=True).start()
            except RuntimeError:  # no thread can be started, or Python ends
                _keep(what)
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
