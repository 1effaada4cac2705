# SPDX-License-Identifier: Apache-2.0
"""`await` for operations. At first, each iteration of the event loop polls the operation, because most copies end soon. After that, the
task waits for the operation's descriptor if it has one, and otherwise polls with growing pauses."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Generator
from typing import Any

__all__ = ["close", "send", "steps", "throw"]

_MAX_POLLS = 50  # iterations of the loop before the task sleeps: most copies have ended by then
_MAX_SLEEP = 0.02  # seconds: if another task or thread sees the end first, the descriptor is closed and wakes nobody
_MAX_PAUSE = 1e-3  # seconds; each pause is half again as long as the last one, so polling lengthens a wait by at most about half


def _by_polling(operation: Any) -> Generator[Any, None, Any]:
    """Waits by polling. `operation`: an object with done(), which must not block, and wait()."""
    pause = 0.0
    polls = 0
    while not operation.done():
        polls += 1
        if polls > _MAX_POLLS:
            pause = min(pause * 1.5 + 1e-5, _MAX_PAUSE)
        yield from asyncio.sleep(pause).__await__()
    return operation.wait()


def _by_descriptor(operation: Any) -> Generator[Any, None, Any]:
    """Waits for a copy on its descriptor, which an interrupt of the GPU makes readable."""
    for _ in range(_MAX_POLLS):
        if operation.done():
            return operation.wait()
        yield from asyncio.sleep(0).__await__()
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.dup(operation.descriptor())  # the operation's own is closed at its end
    except OSError:  # it has ended, then() has a function waiting for it, or no descriptor is left
        return (yield from _by_polling(operation))
    try:
        while not operation.done():
            woken = loop.create_future()
            try:
                loop.add_reader(descriptor, _wake, woken)
            except NotImplementedError:  # a loop without readers
                return (yield from _by_polling(operation))
            recheck = loop.call_later(_MAX_SLEEP, _wake, woken)
            try:
                if not operation.done():  # an end before add_reader() would wake nobody
                    yield from woken.__await__()
            finally:
                recheck.cancel()
                loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
    return operation.wait()


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


def until_done(operation: Any) -> Generator[Any, None, Any]:
    """Waits for an operation that cannot be cancelled.

    If the task is cancelled, a thread keeps the operation until it ends, because deleting it earlier would block the loop. If no thread
    can be started, the loop does block.
    """
    try:
        return (yield from _by_descriptor(operation) if operation.has_descriptor else _by_polling(operation))
    except (asyncio.CancelledError, GeneratorExit):
        if not operation.done():
            try:
                threading.Thread(target=_keep, args=(operation,), name="peerlane-copy", daemon=True).start()
            except RuntimeError:  # no thread can be started, or Python ends
                _keep(operation)
        raise


def _keep(operation: Any) -> None:
    with contextlib.suppress(OSError):  # the error is reported to whoever waits for the operation
        while not operation.done():
            time.sleep(_MAX_PAUSE)


def steps(operation: Any) -> Generator[Any, None, Any]:
    """The generator behind `await operation`."""
    return _by_polling(operation) if operation.can_cancel else until_done(operation)


# These methods make an operation a coroutine. The first call of one of them creates its generator.


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
