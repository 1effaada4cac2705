# SPDX-License-Identifier: Apache-2.0
"""Puts, signals and waits that CUDA streams execute: no CPU is involved between a kernel and the peer's next kernel.

    job = peerlane.triggered.open()
    mine = job.expose(inbox)                                    # a GPU tensor that peers may put into
    theirs = job.import_window(job.all_gather(mine.key)[peer])
    channel = job.connect(peer, 1)
    channel.put_signal(torch.cuda.current_stream(), theirs, 0, outbox)
    channel.wait_signal(torch.cuda.current_stream())            # kernels queued after this see the peer's values

The order of operations: docs/async-api.md.
"""

from typing import TYPE_CHECKING

from . import _gpu, _core  # _gpu first: it is what _core runs on
from ._arguments import number, seconds, truth
from .communicator import _place

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Channel", "RemoteWindow", "StreamCollectives", "StreamContext", "StreamWindow"]  # open() would hide Python's: import it by name

Channel, StreamWindow, RemoteWindow = _core.Channel, _core.StreamWindow, _core.RemoteWindow
StreamCollectives = _core.StreamCollectives


class StreamContext(_core.StreamContext):
    """One process's membership in the job, for one GPU; usable as a context manager."""

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return f"<peerlane.triggered.StreamContext rank {self.rank} of {self.size}>"
        except ValueError:
            return "<peerlane.triggered.StreamContext closed>"


def open(*, rendezvous: str = "", rank: int = 0, size: int = 0, device: int | None = None, economy: bool = False,
         wait_timeout: float = 30) -> StreamContext:
    """Opens this process's membership; collective. The processes find each other as in peerlane.communicator.open().

    `device`: the GPU; None: the one of the current context. `economy`: the proxy thread sleeps while it is idle. `wait_timeout`:
    seconds after which a waiting stream is released with an error.
    """
    place = _place(rendezvous, rank, size)
    gpu = None if device is None else number("device", device, 0, 1023)
    return StreamContext(*place, gpu, truth("economy", economy), seconds("wait_timeout", wait_timeout))
