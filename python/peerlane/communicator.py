# SPDX-License-Identifier: Apache-2.0
"""Messages, put and get between tensors of the processes of a job: any mix of GPU and host memory, no MPI needed.

    comm = peerlane.communicator.open()             # as mpirun, srun or torchrun says
    if comm.rank == 0:
        comm.send(1, tensor, tag=7)
    else:
        comm.recv(0, tensor, tag=7)

How messages travel: docs/messaging.md. Progress is made inside calls.
"""

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._arguments import number, seconds, text, truth
from ._errors import Error

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._operation import Operation

__all__ = ["ANY_SOURCE", "Communicator", "FAILURE_CLOSED", "FAILURE_LOST", "WHOLE_TAG", "Window"]  # open() would hide Python's: import it by name

Window = _core.Window
ANY_SOURCE, WHOLE_TAG = _core.ANY_SOURCE, _core.WHOLE_TAG
FAILURE_LOST, FAILURE_CLOSED = _core.FAILURE_LOST, _core.FAILURE_CLOSED  # of Communicator.await_failure
_MAX_INT = (1 << 31) - 1


class _Sleep:
    """The event loop's wait for the communicator's next event; several tasks share it. It watches a descriptor of its own: the loop
    remembers numbers, and after the communicator has closed its descriptor, the number may be that of somebody's socket."""

    def __init__(self, communicator: "Communicator"):
        self.loop = asyncio.get_running_loop()
        self.happened = self.loop.create_future()
        self._descriptor = os.dup(communicator.event_descriptor())
        self.loop.add_reader(self._descriptor, communicator._wake)

    def end(self) -> None:
        """In the loop's thread, or when the loop is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if not self.loop.is_closed():
            self.loop.remove_reader(descriptor)
            if not self.happened.done():
                self.happened.set_result(None)
        os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:  # the loop holds it while it may still run
            os.close(self._descriptor)


class Communicator(_core.Communicator):
    """A process's membership in a job; usable as a context manager. `after` of its calls: see peerlane.copy()."""

    _asleep: _Sleep | None = None  # of the tasks of the loop

    async def wait_async(self, operation: "Operation") -> tuple[int, int, int]:
        """operation.wait() for asyncio: the loop runs other tasks in the meantime, and sleeps on event_descriptor() if there are none.
        `await operation` needs no descriptor, but sleeps for up to a millisecond between polls. Use one loop at a time for a
        communicator."""
        while not operation.done():
            try:
                if self.arm():
                    await self._sleep()
                    continue
            except (Error, ValueError):
                if operation.done():  # another thread has closed the communicator
                    break
                raise
            self._wake()  # the event may be the one that another task waits for
            await asyncio.sleep(0)
        return operation.wait()

    async def _sleep(self) -> None:
        if self._asleep is not None and self._asleep.loop is not asyncio.get_running_loop():
            self._wake()  # left by tasks of an earlier loop
        if self._asleep is None:
            self._asleep = _Sleep(self)
        await asyncio.shield(self._asleep.happened)  # a task that is cancelled leaves the others asleep

    def _wake(self) -> None:
        asleep, self._asleep = self._asleep, None
        if asleep is not None:
            asleep.end()

    def close(self) -> None:
        """Leaves the job. Operations in progress end with an error (ECANCELED), and tasks that wait for them continue. It waits for
        calls of other threads. You may call it repeatedly."""
        super().close()
        asleep = self._asleep
        if asleep is None:
            return
        try:
            in_loop = asyncio.get_running_loop() is asleep.loop
        except RuntimeError:
            in_loop = False
        if in_loop or asleep.loop.is_closed():
            self._wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed, and its tasks are gone
                asleep.loop.call_soon_threadsafe(self._wake)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return f"<peerlane.communicator.Communicator rank {self.rank} of {self.size}>"
        except ValueError:
            return "<peerlane.communicator.Communicator closed>"


def _place(rendezvous: str, rank: int, size: int) -> tuple[str, int, int]:
    return text("rendezvous", rendezvous), number("rank", rank, 0, _MAX_INT), number("size", size, 0, _MAX_INT)


def open(
    *, rendezvous: str = "", rank: int = 0, size: int = 0, host_only: bool = False, timeout: float = 60, elastic: bool = False
) -> Communicator:
    """Opens this process's membership in the job; collective. Set the GPU first (torch.cuda.set_device).

    `rendezvous`: "host:port" of rank 0 or "file:FOLDER". Omit it, `rank` and `size` under mpirun, srun and torchrun, or if
    PEERLANE_LINK_* is set. `host_only`: do not use CUDA. `timeout`: seconds. `elastic`: ranks may leave and come back
    (Communicator.await_return); give all ranks the same value, and do not use a folder as `rendezvous`.
    """
    place = _place(rendezvous, rank, size)
    return Communicator(*place, truth("host_only", host_only), seconds("timeout", timeout), truth("elastic", elastic))
