# SPDX-License-Identifier: Apache-2.0
"""Types of arguments and results, for type checkers. Arrays and streams are described by the interface that they offer.

    def upload(x: peerlane.DeviceArray, values: peerlane.AnyArray) -> None:
        peerlane.copy(x, values)
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

__all__ = ["After", "AnyArray", "ChangeKind", "Condition", "DeviceArray", "Direction", "Durability", "Eviction", "Finding", "MachineInfo", "MappingInfo", "OperationInfo", "Reduction", "Stream"]


class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


class _Dlpack(Protocol):
    # Properties, so that methods of any signature fit: the libraries differ in their keywords.
    @property
    def __dlpack__(self) -> Callable[..., Any]: ...
    @property
    def __dlpack_device__(self) -> Callable[[], tuple[Any, Any]]: ...


class _Mapped(Protocol):
    """A Mapping."""
    @property
    def device_ptr(self) -> int: ...
    @property
    def dtype_name(self) -> str: ...


class _Buffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> Any: ...


class _CupyStream(Protocol):
    @property
    def ptr(self) -> Any: ...


class _CudaStream(Protocol):
    @property
    def __cuda_stream__(self) -> Callable[[], tuple[Any, Any]]: ...


# Memory of a GPU: PyTorch, CuPy, Numba, JAX, a mapping, or (device pointer, size in bytes).
DeviceArray: TypeAlias = _CudaArray | _Dlpack | _Mapped | tuple[int, int]
# GPU memory or host memory: also NumPy arrays, bytes, and every object with the buffer protocol.
AnyArray: TypeAlias = _CudaArray | _Dlpack | _Mapped | tuple[int, int] | _Buffer
# A CUDA stream: its CUstream as an integer (None: the default stream), or an object of PyTorch, CuPy or another library.
Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | None
# The work that a call must wait for: see peerlane.copy().
After: TypeAlias = Literal["auto"] | int | _TorchStream | _CupyStream | _CudaStream | None

Direction = Literal["to_device", "to_host", "on_device"]
Durability = Literal["volatile", "logged", "durable"]
Condition = Literal["absent", "present"]
ChangeKind = Literal["put", "erased", "evicted", "expired", "lost"]
Eviction = Literal["s3-fifo", "lru"]
Reduction = Literal["sum", "product", "minimum", "maximum"]


class MappingInfo(TypedDict, total=False):
    """Result of Mapping.info(). A mapping of no bytes has only the first two fields."""

    device_ptr: int
    mapped_bytes: int
    backend: Literal["gdrdrv", "dmabuf", "rm"]
    mapping_type: Literal["none", "wc", "cached", "device", "unknown"]
    device_ordinal: int
    pinned_ptr: int
    pinned_bytes: int


class ChannelState(TypedDict):
    """Result of Channel.state(): the executor, the error that ended the channel (0: none), and counters."""

    executor: Literal["not ready", "peer", "proxy", "dma", "unknown"]
    error: int
    puts: int
    sent: int
    waits: int
    reached: int
    passed: int


class MessageCounts(TypedDict):
    """Result of Communicator.statistics(): number of messages for each protocol and transport."""

    eager: int
    self: int
    shared_ring: int
    network_ring: int
    ipc: int
    ucx_direct: int
    unexpected: int
    waiting_sends: int
    operations: int


class OperationInfo(TypedDict):
    """Result of Operation.info() for an operation that has ended. Fields that do not apply to it are 0, and `source` is -1."""

    error: int
    source: int
    tag: int
    size_bytes: int
    moved_bytes: int
    version: int
    path: int
    durability: int
    crc32c: int
    user_flags: int


class MachineInfo(TypedDict):
    """Result of peerlane.info(): the result file of `peerlane info` (docs/results.md)."""

    schema: str
    tool: str
    simulated: bool
    passed: bool
    machine: dict[str, Any]
    parameters: dict[str, Any]
    units: dict[str, str]
    notes: list[str]
    rows: list[dict[str, Any]]


class Finding(TypedDict):
    """One finding of peerlane.doctor(). `what`: the finding; `fix`: how to solve it, or empty."""

    level: Literal["ok", "note", "BLOCKER"]
    subject: str
    what: str  # lint:allow(names): a field of doctor's JSON
    fix: str
