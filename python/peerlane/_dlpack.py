# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules for peerlane.testing (struct DLManagedTensor of dlpack.h, by ctypes)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .testing import DeviceArray

__all__ = ["capsule"]

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6, "V": 4}  # V: ml_dtypes' bfloat16
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
                ("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_alive: dict[int, tuple[object, ...]] = {}  # address of a struct -> the objects it points to, until its consumer or its capsule is deleted


def _let_go(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_delete = _Deleter(_let_go)


_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


def _drop(unused: int) -> None:
    if _is_valid(unused, _NAME):  # no consumer has taken ownership (it would have renamed the capsule)
        _alive.pop(_pointer(unused, _NAME), None)


_destroy = _Destructor(_drop)


def capsule(array: DeviceArray) -> object:
    """Returns a "dltensor" capsule, which keeps `array` alive until its consumer deletes it."""
    ndim, itemsize = len(array.shape), array.dtype.itemsize
    managed = _Managed()
    shape = (ctypes.c_int64 * max(ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(ndim, 1))(*(step // itemsize for step in array.strides))
    managed.tensor = _Tensor(array.address, 2, array.device, ndim, _CODES[array.dtype.kind], itemsize * 8, 1, shape, strides, 0)
    managed.deleter = _delete
    _alive[ctypes.addressof(managed)] = (managed, shape, strides, array)
    return _new(ctypes.addressof(managed), _NAME, _destroy)
