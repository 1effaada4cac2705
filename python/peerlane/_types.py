# SPDX-License-Identifier: Apache-2.0
"""What calls take and give, for type checkers: arrays by the interfaces that they offer, streams, results as dictionaries.

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
# That, or memory of the host: NumPy arrays, bytes, anything with a buffer.
AnyArray: TypeAlias = _CudaArray | _Dlpack | _Mapped | tuple[int, int] | _Buffer
# A CUDA stream: its CUstream as an integer (None: the default stream), or an object of PyTorch, CuPy or another library.
Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | None
# What a call comes after.
After: TypeAlias = Literal["auto"] | int | _TorchStream | _CupyStream | _CudaStream | None

Direction = Literal["to_device", "to_host", "on_device"]
Durability = Literal["volatile", "logged", "durable"]
Condition = Literal["absent", "present"]
ChangeKind = Literal["put", "erased", "evicted", "expired", "lost"]
Eviction = Literal["s3-fifo", "lru"]
Reduction = Literal["sum", "product", "minimum", "maximum"]


class MappingInfo(TypedDict, total=False):
    """What Mapping.info() tells. A mapping of no bytes has the first two only."""

    device_ptr: int
    mapped_bytes: int
    backend: Literal["gdrdrv", "dmabuf", "rm"]
    mapping_type: Literal["none", "wc", "cached", "device", "unknown"]
    device_ordinal: int
    pinned_ptr: int
    pinned_bytes: int


class ChannelState(TypedDict):
    """What Channel.state() tells: the executor, the error that ended the channel (0: none), and counts."""

    executor: Literal["not ready", "peer", "proxy", "dma", "unknown"]
    error: int
    puts: int
    sent: int
    waits: int
    reached: int
    passed: int


class MessageCounts(TypedDict):
    """What Communicator.statistics() tells: messages by the way they took."""

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
    """What Operation.info() tells of an operation that has ended; fields that do not concern it are 0, `source` -1."""

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
    """What peerlane.info() tells: the result file of `peerlane info` (docs/results.md)."""

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
    """One line of peerlane.doctor()."""

    level: Literal["ok", "note", "BLOCKER"]
    subject: str
    what: str  # lint:allow(names): a field of doctor's JSON
    fix: str
