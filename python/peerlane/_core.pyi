"""The compiled half of the package; use `peerlane`."""

import abc
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import peerlane._types
from peerlane._types import After, AnyArray


def process_number() -> int:
    """The number of this process. It differs in every forked child."""

class Region:
    """The mapped memory. It lives as long as any view of it."""

class MappingBase:
    """What peerlane.Mapping is built on."""

    def __init__(self, x: object | None, dtype: object | None = None, shape: object | None = None, force_pcie: bool = False, verify: bool = False) -> None: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...

    def read(self, index: Any = ...) -> Any:
        """
        Returns one element as a Python number (1.2 us on an H100: one bus round trip), or a slice as a new NumPy array, fetched by
        the copy planner. It does not wait for streams.
        """

    def write(self, index: Any, value: Any) -> None:
        """
        Stores a number to one element, or an array (or a number) to a slice. Fenced: later stores of this thread come after it.
        """

    def flush(self) -> None:
        """
        Orders stores made through `array` before later ones, and sends them to the GPU.
        """

    def close(self) -> None:
        """
        Ends the mapping. While there are NumPy views of it, the memory stays mapped (and allocated) for them.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes."""

    @property
    def dtype_name(self) -> str:
        """Name of the data type, such as "float32" or "bfloat16"."""

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes, without gaps."""

    @property
    def device_ptr(self) -> int:
        """Device address of the first element."""

    def info(self) -> peerlane._types.MappingInfo:
        """Backend, kind of mapping and pinned range, as a dictionary."""

    def _array_interface(self) -> dict[str, Any]: ...

    def _region(self) -> object: ...

class Operation(Coroutine[Any, Any, tuple[int, int, int]], metaclass=abc.ABCMeta):
    """
    An operation that continues after its call: a copy, a message, a put or a get. Use `await`, wait(), or test it with done().
    It is also a coroutine, so asyncio.create_task() accepts it. It keeps its tensors. Deleting it waits for a copy or a store's
    request, and cancels a message.
    """

    def done(self) -> bool:
        """
        Makes progress once. True: the operation has ended; wait() then returns the outcome.
        """

    def wait(self, timeout: float | None = None) -> tuple[int, int, int]:
        """
        Waits for the end and returns (source, tag, size_bytes), for a copy (-1, 0, size_bytes). It raises the operation's error.
        The limit is in seconds; after Timeout the operation continues.
        """

    def cancel(self) -> None:
        """
        Cancels the operation. Error with EBUSY: it is too late, or the operation is a copy.
        """

    def then(self, function: Callable[[int], object]) -> None:
        """
        Calls function(errno value; 0: success) once when the operation has ended, from any thread; at once if it has already ended.
        The function must not block. A second function is an Error with EEXIST.
        """

    def make_wait(self, stream: peerlane._types.Stream) -> None:
        """
        For copies: the CUDA stream waits for them on the GPU. The call blocks only for copies that need a CPU.
        """

    def record(self, event: object) -> None:
        """For copies: records the CUDA event after them."""

    def descriptor(self) -> int:
        """
        For copies: returns a descriptor for poll, epoll and event loops. It is readable when the copy may have ended; check with
        done(). It is closed at the copy's end, so register a duplicate. `await` does all this.
        """

    def info(self) -> peerlane._types.OperationInfo | None:
        """
        Returns the details of an operation that has ended; None while it is in progress.
        """

    @property
    def can_cancel(self) -> bool:
        """
        Whether cancel() works: only for messages. Copies, collectives and a store's requests continue to their end.
        """

    @property
    def has_descriptor(self) -> bool:
        """Whether descriptor() works: only for copies."""

    def __await__(self) -> Generator[Any, None, tuple[int, int, int]]: ...

    def send(self, value: Any) -> Any:
        """For the event loop."""

    def throw(self, *exception: Any) -> Any:
        """For the event loop."""

    def close(self) -> None:
        """For the event loop; a copy continues."""

    def __repr__(self) -> str: ...

def wait_all(operations: list[Operation], timeout: float | None) -> list[tuple[int, int, int]]: ...

def wait_any(operations: list[Operation], timeout: float | None) -> int: ...

def copy_async(dst: object | None, src: object | None, after: object | None) -> Operation: ...

def copy(dst: AnyArray, src: AnyArray, *, after: After = "auto") -> None:
    """
    Copies `src` to `dst`, which has the same shape and dtype, by the fastest method; complete on return.

    Each may be a NumPy array, a PyTorch, CuPy, Numba or JAX array, a Mapping, or (device pointer, bytes). `after`: "auto" waits
    for the work that the tensors' libraries have queued on their current streams, None for nothing (the fastest), a stream for
    that stream. GPU work launched afterwards sees the data. Other Python threads can run during the call. Error with EBUSY: the
    stream is being captured into a graph; CUDA is not used then.
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
        Waits until the whole pool is pinned. You never have to call it. Timeout after this many seconds; Error if pinning has
        stopped.
        """

    def close(self) -> None:
        """
        Frees the memory. BufferError while there are views of it. You may call it repeatedly.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    @property
    def size_bytes(self) -> int:
        """Size of the whole pool."""

    @property
    def pinned_bytes(self) -> int:
        """
        Bytes pinned so far, from the beginning; grows until the whole pool is pinned.
        """

    @property
    def address(self) -> int:
        """Address of the first byte."""

    @property
    def numa_node(self) -> int:
        """NUMA node; -1: unknown."""

ANY_SOURCE: int = -1

FAILURE_LOST: int = 0

FAILURE_CLOSED: int = 1

WHOLE_TAG: int = 18446744073709551615

class Window:
    """
    Memory that other processes can put to and get from, until it is closed or deleted.
    """

    @property
    def key(self) -> bytes:
        """The key, as bytes, for the other processes: send it by any means."""

    def close(self) -> None:
        """
        Ends the peers' access to the memory. Timeout: a peer does not answer and may still read it; call again. You may call it
        repeatedly.
        """

class Communicator:
    """What peerlane.communicator.open() returns."""

    def __init__(self, rendezvous: str, rank: int, size: int, host_only: bool, open_timeout: float, elastic: bool) -> None: ...

    def ibroadcast(self, x: peerlane._types.AnyArray, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """Begins to send the root's tensor to all ranks."""

    def igather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to collect the tensors of all ranks at the root, in `out` there, by rank.
        """

    def iscatter(self, x: peerlane._types.AnyArray | None, out: peerlane._types.AnyArray, root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to send each rank its block of the root's x, into `out`. Ranks other than the root pass None for x.
        """

    def iall_gather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to collect the tensors of all ranks at every rank, in `out`, by rank.
        """

    def iall_to_all(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to send each rank its block of every rank's x. In place if `out` is None.
        """

    def ireduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: peerlane._types.Reduction = 'sum', root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to combine the elements of all ranks at the root, in `out` there, or in x.
        """

    def iall_reduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation:
        """Begins to combine the elements of all ranks, in `out`, or in x."""

    def ireduce_scatter(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, op: peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Begins to combine the elements of all ranks. Each rank gets its block of the result in `out`. All blocks have one size.
        """

    def close(self) -> None:
        """
        Leaves the job. Operations in progress end with an error (ECANCELED). It waits for calls of other threads. You may call it
        repeatedly.
        """

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes in the job."""

    def send(self, peer: int, x: peerlane._types.AnyArray, tag: int = 0, *, timeout: float | None = None, after: peerlane._types.After = 'auto') -> None:
        """
        Sends a contiguous tensor in GPU or host memory. When it returns, you may write the tensor again.
        """

    def recv(self, source: int, x: peerlane._types.AnyArray, tag: int = 0, mask: int = 18446744073709551615, *, timeout: float | None = None, after: peerlane._types.After = 'auto') -> tuple[int, int, int]:
        """
        Receives into the tensor and returns (source, tag, size_bytes). GPU work launched afterwards sees the data.
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
        Lets peers put to and get from the tensor. The window keeps the tensor. Send the window's key to the peers.
        """

    def put(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """
        Writes the tensor to a peer's window. The data is there when the operation has ended.
        """

    def put_signal(self, key: bytes, offset: int, x: peerlane._types.AnyArray, value: int = 1, *, signal_key: bytes, signal_offset: int, add: bool = True, after: peerlane._types.After = 'auto') -> Operation:
        """
        Like put, then adds the value to an aligned 64-bit word in a window of the same process, or sets the word. A process that
        sees the new value of the word also sees the tensor's bytes.
        """

    def wait_signal(self, key: bytes, offset: int, least: int, timeout: float | None = None) -> int:
        """
        Waits until the word in this process's window is at least `least`, and returns its value. The limit is in seconds.
        """

    def get(self, key: bytes, offset: int, x: peerlane._types.AnyArray, *, after: peerlane._types.After = 'auto') -> Operation:
        """Fills the tensor from a peer's window, from byte `offset` on."""

    def fetch_add(self, key: bytes, offset: int, operand: int) -> int:
        """
        Adds to an aligned 64-bit word of a window and returns the old value.
        """

    def barrier(self, timeout: float | None = None) -> None:
        """
        Returns when every process has called it. The limit is in seconds.
        """

    def all_gather(self, mine: bytes) -> list[bytes]:
        """
        Returns the bytes of every rank, in the order of ranks. All have one length. Use it for setup.
        """

    def progress(self) -> bool:
        """
        Makes progress on all operations once. True: something has progressed.
        """

    def event_descriptor(self) -> int:
        """
        A descriptor for select, poll or loop.add_reader. It is readable when something happens after arm() has returned True. The
        communicator owns it.
        """

    def arm(self) -> bool:
        """
        Call it before each sleep on the descriptor. False: something has happened since the last call, so check the operations
        first.
        """

    def peer_is_alive(self, peer: int) -> bool:
        """False if the process is known to have ended."""

    def await_failure(self) -> Operation:
        """
        An operation that ends when a process of the job is gone: (rank, FAILURE_LOST or FAILURE_CLOSED, 0). Each process is
        reported once, even if it was already gone.
        """

    def await_return(self) -> Operation:
        """
        In an elastic job: an operation that ends when a rank is back as a new process, (rank, its incarnation, 0). Every rank needs
        one for each return.
        """

    def incarnation(self, peer: int) -> int:
        """
        Number of the rank's current process, from 1; 0: this process has not known any.
        """

    def restore_collectives(self, timeout: float | None = None) -> None:
        """
        Enables collectives again. All ranks call it, in an elastic job after every loss. The limit is in seconds.
        """

    def plan(self, peer: int) -> str:
        """
        Returns the transport of messages for each size, as readable text.
        """

    def statistics(self) -> peerlane._types.MessageCounts:
        """Messages sent, by transport."""

class StreamWindow:
    """
    GPU memory of this process that peers can put to, as long as this object lives.
    """

    @property
    def key(self) -> bytes:
        """The key, as bytes, for the peers."""

class RemoteWindow:
    """A peer's window."""

class Channel:
    """
    This process's end of a channel. Puts and signals are numbered from 1, and so are waits: wait n ends when put or signal n of
    the peer is complete. A stream is a CUstream as an integer, or a stream of PyTorch or CuPy.
    """

    def ready(self, timeout: float | None = None) -> None:
        """Waits until the peer has opened its end."""

    def put_signal(self, stream: peerlane._types.Stream, to: RemoteWindow, offset: int, x: peerlane._types.DeviceArray) -> int:
        """
        When the stream reaches this call, it copies x to `offset` (bytes) of the window and then signals the peer. Returns the
        number of the signal. Keep x unchanged until the stream has passed the call (PyTorch: x.record_stream).
        """

    def signal(self, stream: peerlane._types.Stream) -> int:
        """Like put_signal, without a put."""

    def wait_signal(self, stream: peerlane._types.Stream, sequence: int = 0) -> int:
        """
        The stream waits until the peer's signal is complete; 0: the next signal. Returns the number of the signal.
        """

    def release(self, stream: peerlane._types.Stream, sequence: int) -> None:
        """
        When the stream has reached this call, the peer may overwrite the data of puts up to `sequence`.
        """

    def arrived(self, sequence: int) -> bool:
        """
        Whether the peer's signal with this number is complete. It does not wait.
        """

    def host_wait(self, sequence: int, timeout: float | None = None) -> None:
        """Waits for the signal on this thread. The limit is in seconds."""

    def cancel(self) -> None:
        """
        Releases every stream that waits on the channel, and ends the channel with an error on both sides.
        """

    def state(self) -> peerlane._types.ChannelState:
        """
        Executor, error (0: none) and counts of puts and waits, as a dictionary.
        """

    def diag(self) -> str:
        """Returns what the channel waits for, as readable text."""

class StreamCollectives:
    """
    Collectives that streams execute. Every rank queues the same calls in the same order, on one stream. Keep the tensors until
    the stream has passed the call (PyTorch: x.record_stream). Calls may be captured in graphs.
    """

    def all_reduce(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray | None = None, op: peerlane._types.Reduction = 'sum') -> None:
        """Combines the elements of all ranks, in `out`, or in x."""

    def reduce_scatter(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray, op: peerlane._types.Reduction = 'sum') -> None:
        """
        Combines the elements of all ranks. Each rank gets its block of the result in `out`.
        """

    def all_gather(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray) -> None:
        """Collects x of all ranks in `out`, by rank."""

    def all_to_all(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: peerlane._types.DeviceArray) -> None:
        """Sends each rank its block of every rank's x."""

    def barrier(self, stream: peerlane._types.Stream) -> None:
        """
        Later work on the stream begins when the streams of all ranks have reached the barrier.
        """

    def check(self) -> None:
        """
        Raises the reason if the collectives have been stopped. It does not wait.
        """

    def cancel(self) -> None:
        """Stops the collectives: waiting kernels end."""

    def close(self) -> None:
        """
        Frees the memory. Collective; call it when everything queued has ended. You may call it repeatedly.
        """

class StreamContext:
    """What peerlane.triggered.open() returns."""

    def __init__(self, rendezvous: str, rank: int, size: int, device: int | None, economy: bool, wait_timeout: float) -> None: ...

    def close(self) -> None:
        """
        Closes the channels; synchronise the streams first. You may call it repeatedly.
        """

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes that take part."""

    def expose(self, x: peerlane._types.DeviceArray) -> StreamWindow:
        """
        Lets peers put to the GPU tensor. The window keeps the tensor. Send the window's key to the peers.
        """

    def import_window(self, key: bytes) -> RemoteWindow:
        """Makes a peer's window from its key."""

    def connect(self, peer: int, id: int, depth: int = 0) -> Channel:
        """
        Opens this process's end of channel `id`; the peer connects with the same id. `depth`: put n waits until put n - depth was
        released; 0: no such wait.
        """

    def open_collectives(self) -> StreamCollectives:
        """
        Opens collectives between all ranks, which streams execute. Collective. Close them before the context.
        """

    def all_gather(self, mine: bytes) -> list[bytes]:
        """
        Returns the bytes of every rank, in the order of ranks. All have one length. Use it for setup.
        """

    def barrier(self) -> None:
        """Returns when every process has called it."""

    def diag(self) -> str:
        """
        Returns the state of every channel and of the proxy thread, as readable text.
        """
