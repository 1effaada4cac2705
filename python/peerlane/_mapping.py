# SPDX-License-Identifier: Apache-2.0
"""GPU memory as a NumPy array: the mapping object, and an array type that warns of slow reads."""

import errno
import os
import sys
import types
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _html
from ._copy import copy
from ._errors import Error
from ._types import DeviceArray
from . import _gpu, _core  # _gpu first: it is what _core runs on

if TYPE_CHECKING:
    from typing_extensions import Self


__all__ = ["MappedArray", "Mapping", "SlowReadWarning"]  # map() would hide Python's: import it by name

# For the warning only. Loads through a mapping are slow because each waits for a bus round trip before the next one starts.
_VIEW_READ_GBPS = 0.5
_PLANNER_READ_GBPS = 25.0
_BIG_READ_BYTES = 64 << 10
_warned = False


class SlowReadWarning(UserWarning):
    """A program reads much GPU memory through a view, which is some fifty times slower than Mapping.read()."""


def numpy_dtype(name: str, itemsize: int) -> np.dtype:
    """Returns the dtype with this name. Types that neither NumPy nor ml_dtypes has become unsigned integers of the same size."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # type: ignore[import-not-found]
        known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return known
    except (ImportError, AttributeError):
        return np.dtype(f"u{itemsize}")


def _callers_level() -> int:
    """Returns the stacklevel for warnings.warn(): the first frame outside this package and NumPy."""
    inner = (os.path.dirname(__file__), os.path.dirname(np.__file__))
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(inner):
        frame, level = frame.f_back, level + 1
    return level


def _warn_once(size_bytes: int) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"{size_bytes} bytes of GPU memory are being read through a view: {size_bytes / _VIEW_READ_GBPS / 1e6:.2f} ms at best "
        f"({_VIEW_READ_GBPS} GB/s over PCIe). mapping.read() or mapping[...] fetches them in about "
        f"{size_bytes / _PLANNER_READ_GBPS / 1e6 + 0.005:.2f} ms. This is said once.", SlowReadWarning, stacklevel=_callers_level())


def _raw(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a plain array on the memory of the view. Error in a forked child, in which the memory is not mapped."""
    owner: Any = view
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, _Window) and owner.process != _core.process_number():
        raise Error(errno.EACCES, "the view belongs to the parent process: its memory is not mapped in a forked child; start it with "
                                  "multiprocessing's method spawn")
    return view.view(np.ndarray)


def _plain(value: Any) -> Any:
    """Returns `value` with views replaced by plain arrays on the same memory. Warns once if a view is large."""
    if isinstance(value, MappedArray):
        if value.nbytes >= _BIG_READ_BYTES:
            _warn_once(value.nbytes)
        return _raw(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(each) for each in value) if type(value) in (tuple, list) else value
    return value


class MappedArray(np.ndarray[Any, Any]):
    """A NumPy array whose elements are in GPU memory.

    `view[3, 5] = 7.0` is one store over the bus, and `view[3, 5]` is one load. Slices are views again. Results of computations are
    ordinary arrays. Stores may stay in the CPU's write-combining buffers until `mapping.flush()`.
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["out"] = tuple(_raw(o) if isinstance(o, MappedArray) else o for o in out)
        result = getattr(ufunc, method)(*(_plain(each) for each in inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.copyto:  # its destination is written; its source may also be a view
            return func(_raw(args[0]) if isinstance(args[0], MappedArray) else args[0], *_plain(args[1:]), **kwargs)
        return func(*_plain(args), **{key: _plain(value) for key, value in kwargs.items()})

    def copy(self, order: Any = "C") -> Any:
        """An ordinary array with the same elements."""
        return _plain(self).copy(order)

    def tolist(self) -> Any:
        return _plain(self).tolist()

    def tobytes(self, order: Any = "C") -> Any:
        return _plain(self).tobytes(order)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self).astype(*args, **kwargs)

    def __repr__(self) -> str:
        return f"MappedArray({repr(_raw(self)).removeprefix('array(')}"

    def __str__(self) -> str:
        return str(_raw(self))

    def __reduce__(self) -> Any:
        return self.copy().__reduce__()


class _Window:
    """The `base` of a view: keeps the mapped memory alive, and knows which process mapped it."""

    __slots__ = ("__array_interface__", "_region", "process")

    def __init__(self, interface: dict[str, Any], region: object):
        self.__array_interface__ = interface
        self._region = region
        self.process = _core.process_number()


class _DeviceView:
    """Part of a mapping as a device array, for copy()."""

    __slots__ = ("__cuda_array_interface__", "dtype", "_mapping")

    def __init__(self, mapping: "Mapping", view: np.ndarray[Any, Any], address: int):
        self.__cuda_array_interface__ = {
            "version": 3, "typestr": view.dtype.str if view.dtype.kind != "V" else f"|V{view.dtype.itemsize}",
            "shape": view.shape, "strides": view.strides, "data": (address, not view.flags.writeable)}
        self.dtype = view.dtype
        self._mapping = mapping


class Mapping(_core.MappingBase):
    """Memory of a GPU tensor in the CPU's address space; see peerlane.map(). Usable as a context manager.

    Access one element by `m[i, j]`, `m[i, j] = value` (or `read`, `write`). The planner copies slices. `array` is the NumPy view. Any
    thread may use a mapping. It waits for no stream, so synchronise the producer of the tensor first.
    """

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a mapping without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<peerlane.Mapping{state} {self.dtype_name}{list(self.shape)} at {self.device_ptr:#x}>"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"dtype": self.dtype_name, "shape": self.shape, "strides": self.strides, "bytes": self.nbytes,
                                    "device address": hex(self.device_ptr)}
        if not self.closed:
            described = self.info()
            facts |= {"backend": described.get("backend", ""), "kind of mapping": described.get("mapping_type", ""), "GPU": described.get("device_ordinal", "")}
        return _html.rows(f"peerlane.Mapping{' (closed)' if self.closed else ''}", facts)

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype: bfloat16 and float8 are types of ml_dtypes if it is installed, otherwise unsigned integers."""
        return numpy_dtype(self.dtype_name, self.itemsize)

    @property
    def array(self) -> MappedArray:
        """The NumPy view of the GPU memory; it keeps the mapping alive beyond close()."""
        view = np.asarray(_Window(self._array_interface(), self._region()))
        return (view if view.dtype == self.dtype else view.view(self.dtype)).view(MappedArray)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """For np.asarray(m): all elements, fetched by the planner rather than one by one."""
        if copy is False:
            raise ValueError("indexing copies the elements of a mapping; for a NumPy array in the mapped memory use mapping.array")
        out: np.ndarray[Any, Any] = self.read()
        return out if dtype is None else out.astype(dtype, copy=False)

    def _select(self, index: Any) -> tuple[Any, int | None]:
        """Returns the part that `index` selects and its device address. The address is None if NumPy had to copy (lists, masks)."""
        whole = self.array.view(np.ndarray)
        part = whole[index]
        if isinstance(part, np.ndarray) and (part.size == 0 or np.may_share_memory(whole, part)):
            first = whole.__array_interface__["data"][0]
            return part, self.device_ptr + part.__array_interface__["data"][0] - first
        return part, None

    def _read_any(self, index: Any) -> Any:
        part, address = self._select(index)
        if address is None:
            return part.item() if isinstance(part, np.generic) else part
        out = np.empty(part.shape, part.dtype)
        copy(out, _DeviceView(self, part, address), after=None)
        return out.item() if out.ndim == 0 and index is not Ellipsis else out

    def _write_any(self, index: Any, value: Any) -> None:
        part, address = self._select(index)
        if address is None:
            self.array[index] = value
            self.flush()
            return
        source = np.asarray(value)
        if source.dtype != part.dtype or source.shape != part.shape or not source.flags.c_contiguous:
            filled = np.broadcast_to(source.astype(part.dtype), part.shape)
            source = np.ascontiguousarray(filled).reshape(part.shape)  # which has one dimension where there is none
        copy(_DeviceView(self, part, address), source, after=None)


def map(x: DeviceArray, *, dtype: npt.DTypeLike | str | None = None, shape: int | Iterable[int] | None = None, force_pcie: bool = False,
        verify: bool = False) -> Mapping:
    """Maps GPU memory into the CPU's address space: an access needs no copy and no CUDA call.

    `x`: a PyTorch, CuPy, Numba or JAX array, anything with `__cuda_array_interface__` or DLPack, or (device pointer, bytes). `dtype`
    and `shape` reinterpret contiguous memory. `force_pcie`: use BAR1 even if CPU and GPU are coherent. `verify`: verify the mapping
    with a random number. The mapping keeps `x` alive, and stays valid while there are views of it. Raises peerlane.Error for managed,
    freed and host memory. It takes tens of microseconds, or about one if the allocation is already mapped.
    """
    return Mapping(x, dtype, shape, bool(force_pcie), bool(verify))
