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
from typing import TYPE_CHECKING

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._arguments import number, seconds, text, truth

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._operation import Operation

__all__ = ["ANY_SOURCE", "Communicator", "FAILURE_CLOSED", "FAILURE_LOST", "WHOLE_TAG", "Window"]  # open() would hide Python's: import it by name

Window = _core.Window
ANY_SOURCE, WHOLE_TAG = _core.ANY_SOURCE, _core.WHOLE_TAG
FAILURE_LOST, FAILURE_CLOSED = _core.FAILURE_LOST, _core.FAILURE_CLOSED  # of Communicator.await_failure
_MAX_INT = (1 << 31) - 1


class Communicator(_core.Communicator):
    """A process's membership in a job; usable as a context manager. `after` of its calls: see peerlane.copy()."""

    _happened: "asyncio.Future[None] | None" = None  # the sleeping tasks of the loop wait for this

    async def wait_async(self, operation: "Operation") -> tuple[int, int, int]:
        """operation.wait() for asyncio: the loop runs other tasks in the meantime, and sleeps on event_descriptor() if there are none.
        `await operation` needs no descriptor, but sleeps for up to a millisecond between polls. Use one loop at a time for a
        communicator."""
        while not operation.done():
            if self.arm():
                await self._sleep()
            else:
                self._wake()  # the event may be the one that another task waits for
                await asyncio.sleep(0)
        return operation.wait()

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        if self._happened is None or self._happened.done() or self._happened.get_loop() is not loop:
            self._happened = loop.create_future()
        loop.add_reader(self.event_descriptor(), self._wake)
        await asyncio.shield(self._happened)  # a task that is cancelled leaves the others asleep

    def _wake(self) -> None:
        if self._happened is None:
            return
        loop = self._happened.get_loop()
        if not loop.is_closed():
            loop.remove_reader(self.event_descriptor())
        if not self._happened.done():
            self._happened.set_result(None)
        self._happened = None

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
