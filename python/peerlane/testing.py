# SPDX-License-Identifier: Apache-2.0
"""GPU arrays without PyTorch or CuPy, for tests, examples and first steps. They call the CUDA driver directly.

    import numpy, peerlane
    x = peerlane.testing.zeros((4, 8), numpy.float32)
    peerlane.copy(x, numpy.ones((4, 8), numpy.float32))
    print(x.get())

They use a real GPU if libcuda.so.1 finds one, and otherwise the simulated GPU; PEERLANE_GPU=real or sim overrides this. Arrays offer
`__cuda_array_interface__` and DLPack, like those of PyTorch and CuPy. Any thread may use them. Calls raise CudaError if the driver fails.
"""

import ctypes
import functools
import operator
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._arguments import extents

__all__ = ["CudaError", "DeviceArray", "Stream", "array", "driver", "empty", "is_simulated", "zeros"]

_NOT_READY = 600


class CudaError(RuntimeError):
    """A call of the CUDA driver failed. The message names the call and the CUDA error."""


class _Driver:
    """libcuda.so.1 of this process, and the primary context of each device that was used."""

    def __init__(self) -> None:
        wanted = os.environ.get("PEERLANE_GPU", "auto")
        if wanted == "sim" or (wanted == "auto" and not _real_gpu_answers()):
            _native.load_simulated_gpu()
            os.environ["PEERLANE_GPU"] = "sim"  # for the programs that this process starts
        self.library = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        self.is_simulated = hasattr(self.library, "peerlaneSimVersion")
        self.call("cuInit", 0)
        self.contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the driver by its name, such as "cuInit"; CudaError if it fails."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else code}")

    def enter(self, device: int) -> None:
        """Makes the primary context of the device current on the calling thread."""
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts[device] = context
        self.call("cuCtxSetCurrent", self.contexts[device])


_PROBE = """
import ctypes, sys
library, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
sys.exit(library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0)
"""


def _real_gpu_answers() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
        return True  # a library such as PyTorch has loaded it: do not load a second one
    except OSError:
        pass
    # In a separate process, because a driver cannot be unloaded after cuInit, and a broken one may crash.
    return subprocess.run([sys.executable, "-S", "-c", _PROBE], capture_output=True, check=False).returncode == 0


@functools.cache
def driver() -> _Driver:
    """Returns the CUDA driver of this process: `call(name, ...)` calls a function, `enter(device)` makes a context current."""
    return _Driver()


def is_simulated() -> bool:
    """Whether arrays are on the simulated GPU."""
    return driver().is_simulated


class _Owner:
    """Base of objects that own CUDA memory or a stream. They cannot be copied or pickled: a copy would be freed twice, and another
    process does not have them."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("GPU memory and streams are neither copied nor pickled with their owner: use array.get(), which copies to host memory")


class Stream(_Owner):
    """A non-blocking CUDA stream of GPU `device`; `ptr` is its CUstream. It is destroyed with the object."""

    def __init__(self, device: int = 0):
        driver().enter(device)
        handle = ctypes.c_void_p()
        driver().call("cuStreamCreate", ctypes.byref(handle), 1)
        self.ptr = handle.value

    def synchronize(self) -> None:
        """Blocks until all queued work has ended."""
        driver().call("cuStreamSynchronize", ctypes.c_void_p(self.ptr))

    def is_done(self) -> bool:
        """Whether all queued work has ended. Does not block."""
        return bool(driver().library.cuStreamQuery(ctypes.c_void_p(self.ptr)) != _NOT_READY)

    def __cuda_stream__(self) -> tuple[int, int | None]:
        return 0, self.ptr

    def __del__(self) -> None:
        if getattr(self, "ptr", None):
            driver().library.cuStreamDestroy_v2(ctypes.c_void_p(self.ptr))


class _Memory(_Owner):
    """An allocation; freed when no array uses it any more."""

    def __init__(self, size_bytes: int, device: int, is_managed: bool = False):
        self.pointer = 0  # free() is called where this fails, too
        driver().enter(device)
        pointer = ctypes.c_uint64()
        if is_managed:
            driver().call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(max(size_bytes, 1)), 1)
        else:
            driver().call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size_bytes, 1)))
        self.pointer = int(pointer.value or 0)

    def free(self) -> None:
        """Frees the memory at once, even if arrays still use it."""
        if self.pointer:
            driver().library.cuMemFree_v2(ctypes.c_uint64(self.pointer))
            self.pointer = 0

    __del__ = free


class DeviceArray:
    """An array in GPU memory, from empty(), array() or zeros(). It has a shape, a dtype and basic indexing, but no arithmetic.

    `address`: device address of the first element. `strides`: in bytes. `memory.free()` frees the allocation at once, for tests of
    freed memory; otherwise it lives as long as an array that uses it. If a `stream` was given, `__cuda_array_interface__` names it as
    the one that other libraries must order their work after.
    """

    def __init__(self, memory: _Memory, address: int, shape: Iterable[int], strides: Iterable[int], dtype: npt.DTypeLike, device: int,
                 stream: Stream | None = None):
        self.memory, self.address, self.shape, self.strides = memory, address, tuple(shape), tuple(strides)
        self.dtype, self.device, self.stream = np.dtype(dtype), device, stream
        # Built once, because the memory never moves and building it at each access takes a microsecond.
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3, "shape": self.shape, "strides": self.strides, "data": (address, False), "stream": stream.ptr if stream else None,
            "typestr": self.dtype.str if self.dtype.kind != "V" else f"|V{self.dtype.itemsize}"}

    def __repr__(self) -> str:
        return f"<peerlane.testing.DeviceArray {self.dtype}{list(self.shape)} at {self.address:#x} of GPU {self.device}>"

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, index: Any) -> "DeviceArray":
        """Returns a view of part of the array, with integers, slices and None as in NumPy. It shares the memory."""
        ghost = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        parts = [_basic(each) for each in (index if isinstance(index, tuple) else (index,))]
        # With an ellipsis NumPy always returns a view. Without one it would read an element that the ghost does not have.
        part = ghost[tuple(parts if Ellipsis in parts else [*parts, Ellipsis])]
        offset = part.__array_interface__["data"][0] - ghost.__array_interface__["data"][0]
        return DeviceArray(self.memory, self.address + offset, part.shape, part.strides, self.dtype, self.device, self.stream)

    def get(self) -> np.ndarray[Any, Any]:
        """Returns the elements as a NumPy array. The CUDA driver copies them, so that a test of Peerlane does not depend on Peerlane."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype)
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s < 0)
        high = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s > 0) + self.dtype.itemsize
        raw = np.empty(high - low, np.uint8)
        driver().enter(self.device)
        driver().call("cuMemcpyDtoH_v2", ctypes.c_void_p(raw.ctypes.data), ctypes.c_uint64(self.address + low),
                      ctypes.c_size_t(raw.nbytes))
        driver().call("cuCtxSynchronize")
        return np.ndarray(self.shape, self.dtype, raw, -low, self.strides).copy()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        from . import _dlpack
        return _dlpack.capsule(self)


def _basic(index: Any) -> Any:
    """Returns one part of an index. Raises TypeError if it is none of basic indexing: NumPy would read elements to follow it."""
    if index is None or index is Ellipsis or isinstance(index, slice):
        return index
    if isinstance(index, (bool, np.bool_)) or not hasattr(index, "__index__"):
        raise TypeError(f"index: expected integers, slices, None or ..., got {type(index).__name__}")
    return operator.index(index)


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    out: list[int] = []
    for extent in reversed(shape):
        out.append(itemsize)
        itemsize *= extent
    return tuple(reversed(out))


def empty(shape: int | Iterable[int], dtype: npt.DTypeLike = np.float32, *, device: int = 0, stream: Stream | None = None,
          managed: bool = False) -> DeviceArray:
    """Returns an array with undefined contents on GPU `device`. `stream`: see DeviceArray. `managed`: use managed memory."""
    shape = extents("shape", shape)
    dtype = np.dtype(dtype)
    memory = _Memory(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, device, managed)
    return DeviceArray(memory, memory.pointer, shape, _strides(shape, dtype.itemsize), dtype, device, stream)


def array(values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, device: int = 0, stream: Stream | None = None) -> DeviceArray:
    """Returns an array with these elements, copied by the CUDA driver; complete on return."""
    host = np.ascontiguousarray(values, dtype)
    out = empty(np.shape(values), host.dtype, device=device, stream=stream)
    if host.nbytes:
        driver().call("cuMemcpyHtoD_v2", ctypes.c_uint64(out.address), ctypes.c_void_p(host.ctypes.data),
                      ctypes.c_size_t(host.nbytes))
        driver().call("cuCtxSynchronize")
    return out


def zeros(shape: int | Iterable[int], dtype: npt.DTypeLike = np.float32, *, device: int = 0, stream: Stream | None = None) -> DeviceArray:
    """Returns an array of zeros; complete on return."""
    return array(np.zeros(shape, dtype), device=device, stream=stream)
