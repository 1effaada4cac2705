"""The compiled half of the package; use `peerlane`."""

import abc
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import peerlane._types
from peerlane._types import After, AnyArray


def process_number() -> int:
    """Another number in every forked child."""

class Region:
    """The mapped memory itself; lives as long as any view onto it."""

class MappingBase:
    """What peerlane.Mapping is built on."""

    def __init__(self, x: object | None, dtype: object | None = None, shape: object | None = None, force_pcie: bool = False, verify: bool = False) -> None: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...

    def read(self, index: Any = ...) -> Any:
        """
        One element as a Python number (1.2 us on an H100: one bus round trip), or what a slice names as a new NumPy array,
        fetched by the copy planner. No stream is waited for.
        """

    def write(self, index: Any, value: Any) -> None:
        """
        Stores a number into one element, or an array (or a number) into what a slice names. Fenced: later stores of
        this thread come after it.
        """

    def flush(self) -> None:
        """
        Orders stores made through `array` before later ones, and sends them on their way.
        """

    def close(self) -> None:
        """
        Ends the mapping. While NumPy views onto it live, the memory stays mapped (and allocated) for them.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""

    @property
    def dtype_name(self) -> str:
        """As "float32", "bfloat16"."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps."""

    @property
    def device_ptr(self) -> int:
        """Device address of the first element."""

    def info(self) -> peerlane._types.MappingInfo:
        """Backend, kind of mapping and pinned range, as a dictionary."""

    def _array_interface(self) -> dict[str, Any]: ...

    def _region(self) -> object: ...

class Operation(Coroutine[Any, Any, tuple[int, int, int]], metaclass=abc.ABCMeta):
    """
    What goes on after its call: a copy, a message, a put or a get. `await` it, wait(), or look with done(); a coroutine, too:
    asyncio.create_task() takes it. Keeps its tensors. Dropping it waits for a copy or a store's request, and withdraws a message.
    """

    def done(self) -> bool:
        """Makes progress once. True: it has ended; wait() then tells how."""

    def wait(self, timeout: float | None = None) -> tuple[int, int, int]:
        """
        (source, tag, size_bytes), of a copy (-1, 0, size_bytes); raises what went wrong. Seconds; Timeout leaves it under way.
        """

    def cancel(self) -> None:
        """Error with EBUSY where it is too late, as for copies."""

    def then(self, function: Callable[[int], object]) -> None:
        """
        Calls function(errno value, 0: well) once when it has ended, from any thread; at once if it has. It must not block. A second one is an Error with EEXIST.
        """

    def make_wait(self, stream: peerlane._types.Stream) -> None:
        """
        Of copies: the CUDA stream waits on the GPU for them; nothing blocks here but copies that need a CPU.
        """

    def record(self, event: object) -> None:
        """Of copies: records the CUDA event behind them."""

    def descriptor(self) -> int:
        """
        Of copies: a descriptor for poll, epoll and event loops, readable when they may have ended; done() tells. It is closed at their end: register a duplicate. `await` does all that.
        """

    def info(self) -> peerlane._types.OperationInfo | None:
        """All that is known of one that has ended; None while it is under way."""

    @property
    def can_cancel(self) -> bool:
        """Messages only: copies and a store's requests go on to their end."""

    @property
    def has_descriptor(self) -> bool:
        """Copies only: descriptor() gives what to sleep on."""

    def __await__(self) -> Generator[Any, None, tuple[int, int, int]]: ...

    def send(self, value: Any) -> Any:
        """For the event loop."""

    def throw(self, *exception: Any) -> Any:
        """For the event loop."""

    def close(self) -> None:
        """For the event loop; a copy goes on."""

    def __repr__(self) -> str: ...

def wait_all(operations: list[Operation], timeout: float | None) -> list[tuple[int, int, int]]: ...

def wait_any(operations: list[Operation], timeout: float | None) -> int: ...

def copy_async(dst: object | None, src: object | None, after: object | None) -> Operation: ...

def copy(dst: AnyArray, src: AnyArray, *, after: After = "auto") -> None:
    """
    Copies `src` into `dst`, of the same shape and dtype, by the way that costs least; complete on return.

    Each may be a NumPy array, a PyTorch, CuPy, Numba or JAX array, a Mapping, or (device pointer, bytes). `after`: "auto" waits
    for what the tensors' libraries have queued on their current streams, None for nothing (the quickest), a stream for that
    stream. GPU work launched afterwards sees the data. Other Python threads run meanwhile. Error with EBUSY, before CUDA is
    touched: the stream is being captured into a graph.
    """

def fill_bytes(dst: object | None, value: object | None, after: object | None) -> bytes | None: ...

def one_run(x: object | None, is_written: bool, after: object | None) -> tuple[int, int, object]: ...

def look_at(x: object | None) -> tuple[str, str, tuple[int, ...], int, int, bool]: ...

def explain(direction: str, size_bytes: int, pageable: bool) -> str: ...

def copy_blocks_async(dst: object | None, src: object | None, dst_indices: object | None, src_indices: object | None, urgent: bool, after: object | None) -> Operation: ...

def copy_block_list_async(dst: object, src: object, sizes: object, urgent: bool, after: object | None) -> Operation: ...

class HostPoolBase:
    """What peerlane.HostPool is built on."""

    def __init__(self, size_bytes: int, device: int, piece_bytes: int) -> None: ...

    def wait(self, timeout: float | None = None) -> None:
        """
        Until all is pinned; nothing requires it. Timeout after so many seconds; Error where pinning has stopped.
        """

    def close(self) -> None:
        """
        Gives the memory back. BufferError while views of it are left. Any number of times.
        """

    @property
    def closed(self) -> bool:
        """Whether close() has ended it."""

    @property
    def size_bytes(self) -> int:
        """Of the whole pool."""

    @property
    def pinned_bytes(self) -> int:
        """From the beginning on; grows until all is pinned."""

    @property
    def address(self) -> int:
        """Of its first byte."""

    @property
    def numa_node(self) -> int:
        """-1: not known."""

ANY_SOURCE: int = -1

FAILURE_LOST: int = 0

FAILURE_CLOSED: int = 1

WHOLE_TAG: int = 18446744073709551615

class Window:
    """
    Memory that other processes may put to and get from, until it is closed or dropped.
    """

    @property
    def key(self) -> bytes:
        """Bytes for the others: send them by any way."""

    def close(self) -> None:
        """
        Peers reach the memory no longer. Timeout: one does not answer and may still read it; call again. Any number of times.
        """

class Communicator:
    """What peerlane.communicator.open() returns."""

    def __init__(self, rendezvous: str, rank: int, size: int, host_only: bool, open_timeout: float, elastic: bool) -> None: ...

    def ibroadcast(self, x: peerlane._types.AnyArray, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """Begins to give the root's tensor to all."""

    def igather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to collect the tensors of all ranks at the root, in `out` there, by rank.
        """

    def iscatter(self, x: peerlane._types.AnyArray | None, out: peerlane._types.AnyArray, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to give each rank its block of the root's x, into `out`. Other ranks than the root give None for x.
        """

    def iall_gather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to collect the tensors of all ranks at every rank, in `out`, by rank.
        """

    def iall_to_all(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to give each rank its block of every rank's x. Without `out` in place.
        """

    def ireduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: peerlane._types.Reduction = 'sum', root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to combine the elements of all ranks at the root, in `out` there, or in x.
        """

    def iall_reduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation:
        """Begins to combine the elements of all ranks, in `out`, or in x."""

    def ireduce_scatter(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, op: peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to combine the elements of all ranks; each gets its block of them, all of one size, in `out`.
        """

    def close(self) -> None:
        """
        Leaves the job; what is under way ends with an error (ECANCELED). Any number of times, beside calls of other threads too, which it waits for.
        """

    @property
    def rank(self) -> int:
        """This process, from 0."""

    @property
    def size(self) -> int:
        """Processes of the job."""

    def send(self, peer: int, x: peerlane._types.AnyArray, tag: int = 0, *, timeout: float | None = None, after: peerlane._types.After = 'auto') -> None:
        """
        One contiguous tensor, of the GPU or the host. Returns once it may be written again.
        """

    def recv(self, source: int, x: peerlane._types.AnyArray, tag: int = 0, mask: int = 18446744073709551615, *, timeout: float | None = None, after: peerlane._types.After = 'auto') -> tuple[int, int, int]:
        """
        Into the tensor; (source, tag, size_bytes). GPU work launched afterwards sees the data.
        """

    def isend(self, peer: int, x: peerlane._types.AnyArray, tag: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins a send. The operation keeps the tensor, which must not be written until it has ended.
        """

    def irecv(self, source: int, x: peerlane._types.AnyArray, tag: int = 0, mask: int = 18446744073709551615, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins a receive. The tensor must not be touched until the operation has ended.
        """

    def expose(self, x: peerlane._types.AnyArray) -> Window:
        """
        Lets peers put to and get from the tensor, which the window keeps. Its key goes to them.
        """

    def put(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Writes the tensor into a peer's window; over there once the operation has ended.
        """

    def put_signal(self, key: bytes, offset: int, x: peerlane._types.AnyArray, value: int = 1, *, signal_key: bytes, signal_offset: int, add: bool = True, after: peerlane._types.After = 'auto') -> Operation:
        """
        As put, then adds the value to an aligned 64-bit word of a window of the same process, or sets it: who sees the word's new value sees the tensor's bytes.
        """

    def wait_signal(self, key: bytes, offset: int, least: int, timeout: float | None = None) -> int:
        """
        Until the word of this process's window is `least` or more; its value. Seconds.
        """

    def get(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """Fills the tensor from a peer's window, from byte `offset` on."""

    def fetch_add(self, key: bytes, offset: int, operand: int) -> int:
        """Adds to an aligned 64-bit word of a window; its old value."""

    def barrier(self, timeout: float | None = None) -> None:
        """Returns once every process has come here. Seconds."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, by rank; all of one length. For setting up."""

    def progress(self) -> bool:
        """Advances everything once; true: something moved."""

    def event_descriptor(self) -> int:
        """
        For select, poll or loop.add_reader: readable when something happens after arm() was true. It stays the communicator's.
        """

    def arm(self) -> bool:
        """
        Before each sleep on the descriptor. False: something has happened since the last call; look at the operations first.
        """

    def peer_is_alive(self, peer: int) -> bool:
        """Whether nothing says that the process has ended."""

    def await_failure(self) -> Operation:
        """
        Ends when a process of the job is gone: (rank, FAILURE_LOST or FAILURE_CLOSED, 0). Each is told once, also one that was gone before.
        """

    def await_return(self) -> Operation:
        """
        Of an elastic job: ends when a rank is back as a new process, (rank, its incarnation, 0). Each return needs one at every rank.
        """

    def incarnation(self, peer: int) -> int:
        """
        Which process of its rank it is, from 1; 0: none that this process has known.
        """

    def restore_collectives(self, timeout: float | None = None) -> None:
        """
        Lets collectives begin again at all ranks, which all call it; in an elastic job behind every loss. Seconds.
        """

    def plan(self, peer: int) -> str:
        """Which way messages take, from which size; lines for people."""

    def statistics(self) -> peerlane._types.MessageCounts:
        """Messages sent, by way."""

class StreamWindow:
    """Own GPU memory that peers may put into, while this lives."""

    @property
    def key(self) -> bytes:
        """Bytes for the peers."""

class RemoteWindow:
    """A peer's window."""

class Channel:
    """
    This process's end of a channel. Puts and signals count from 1, and so do waits: wait n is over once
    put or signal n of the peer is complete. A stream is a CUstream as an integer, or PyTorch's or CuPy's.
    """

    def ready(self, timeout: float | None = None) -> None:
        """Waits until the peer has made its end."""

    def put_signal(self, stream: peerlane._types.Stream, to: RemoteWindow, offset: int, x: peerlane._types.DeviceArray) -> int:
        """
        When the stream comes here, x goes to `offset` (bytes) of the window, then the peer is signalled; the number of
        the signal. x must stay, untouched, until the stream has come past (PyTorch: x.record_stream).
        """

    def signal(self, stream: peerlane._types.Stream) -> int:
        """As put_signal, without a put."""

    def wait_signal(self, stream: peerlane._types.Stream, sequence: int = 0) -> int:
        """
        The stream goes on once the peer's signal is complete; 0: the next one. Its number.
        """

    def release(self, stream: peerlane._types.Stream, sequence: int) -> None:
        """
        Once the stream has come here, the peer may write what puts up to `sequence` have brought.
        """

    def arrived(self, sequence: int) -> bool:
        """Whether the peer's signal of that number is complete; no waiting."""

    def host_wait(self, sequence: int, timeout: float | None = None) -> None:
        """This thread waits for it. Seconds."""

    def cancel(self) -> None:
        """
        Lets go every stream that waits here and ends the channel with an error, on both sides.
        """

    def state(self) -> peerlane._types.ChannelState:
        """
        Executor, error (0: none) and counts of puts and waits, as a dictionary.
        """

    def diag(self) -> str:
        """What the channel waits for, in lines for people."""

class StreamCollectives:
    """
    Collectives that streams carry out. Every rank queues the same calls in the same order, on one stream; what a stream
    works on must stay until it has come past (PyTorch: x.record_stream). Calls may be captured in graphs.
    """

    def all_reduce(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray | None = None, op: peerlane._types.Reduction = 'sum') -> None:
        """Combines the elements of all ranks, in `out`, or in x."""

    def reduce_scatter(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray, op: peerlane._types.Reduction = 'sum') -> None:
        """
        Combines the elements of all ranks; each gets its block of them in `out`.
        """

    def all_gather(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray) -> None:
        """Collects x of all ranks in `out`, by rank."""

    def all_to_all(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray) -> None:
        """Gives each rank its block of every rank's x."""

    def barrier(self, stream: peerlane._types.Stream) -> None:
        """
        What is behind it on the stream begins once the streams of all ranks have come to it.
        """

    def check(self) -> None:
        """
        Throws the reason for which the collectives are stopped, if they are. Does not wait.
        """

    def cancel(self) -> None:
        """Stops them: kernels that wait here give up."""

    def close(self) -> None:
        """
        Frees their memory; collective, once everything queued has ended. Any number of times.
        """

class StreamContext:
    """What peerlane.triggered.open() returns."""

    def __init__(self, rendezvous: str, rank: int, size: int, device: int | None, economy: bool, wait_timeout: float) -> None: ...

    def close(self) -> None:
        """
        Closes its channels; synchronise the streams first. Any number of times.
        """

    @property
    def rank(self) -> int:
        """This process, from 0."""

    @property
    def size(self) -> int:
        """Processes that take part."""

    def expose(self, x: peerlane._types.DeviceArray) -> StreamWindow:
        """
        Lets peers put into the GPU tensor, which the window keeps. Its key goes to them.
        """

    def import_window(self, key: bytes) -> RemoteWindow:
        """A peer's window, from its key."""

    def connect(self, peer: int, id: int, depth: int = 0) -> Channel:
        """
        This process's end of channel `id`; the peer connects with the same. `depth`: put n waits until n - depth was
        released; 0: no such wait.
        """

    def open_collectives(self) -> StreamCollectives:
        """
        Collectives between all ranks that streams carry out; collective. They end before the context.
        """

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, by rank; all of one length. For setting up."""

    def barrier(self) -> None:
        """Returns once every process has come here."""

    def diag(self) -> str:
        """Every channel's, and the service thread's."""
