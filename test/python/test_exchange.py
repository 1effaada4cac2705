# SPDX-License-Identifier: Apache-2.0
"""Tensors that DLPack's C functions describe (__dlpack_c_exchange_api__, as PyTorch has since 2.10), played by ctypes, and the storage
of PyTorch's tensors. What was learnt of a tensor must not outlive it, or the memory that it had."""

import ctypes
import sys
import types

import numpy as np
import peerlane
import pytest
from peerlane import testing

from test_torch import Dtype, Tensor

CODES = {"i": 0, "u": 1, "f": 2, "c": 5}


class Described(ctypes.Structure):
    """struct DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class Functions(ctypes.Structure):
    """struct DLPackExchangeAPI."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("unused", ctypes.c_void_p * 3),
                ("describe", ctypes.c_void_p), ("current_stream", ctypes.c_void_p)]


def describe(x, out):
    if x.refuses:
        return -1
    memory = x.storage.x
    x.extents = (ctypes.c_int64 * 8)(*memory.shape)
    x.steps = (ctypes.c_int64 * 8)(*(step // memory.dtype.itemsize for step in memory.strides))
    told = out.contents
    told.data, told.device_type, told.device_id, told.ndim = memory.address - 4, 2, 0, len(memory.shape)
    told.code, told.bits, told.lanes, told.byte_offset = x.code or CODES[memory.dtype.kind], memory.dtype.itemsize * 8, 1, 4
    told.shape, told.strides = ctypes.addressof(x.extents), ctypes.addressof(x.steps)
    x.asked += 1
    return 0


def current_stream(_kind, _device, out):
    out[0] = sys.modules["torch"].stream.ptr
    return 0


DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))(describe)
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(current_stream)
FUNCTIONS = Functions(1, 3, None, (ctypes.c_void_p * 3)(), ctypes.cast(DESCRIBE, ctypes.c_void_p), ctypes.cast(STREAM, ctypes.c_void_p))
NEWER = Functions(2, 0, ctypes.addressof(FUNCTIONS), (ctypes.c_void_p * 3)(), None, None)
NAME = b"dlpack_exchange_api"


def capsule(functions):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(functions), NAME, None)


class Storage:
    def __init__(self, x):
        self.x = x

    def data_ptr(self):
        return self.x.address if self.x is not None else 0


@pytest.fixture(scope="module")
def torch():
    """Stays in sys.modules: the package looks once for the class, and for how its stream is asked."""
    module = sys.modules.setdefault("torch", types.ModuleType("torch"))
    module.Tensor, module.stream = Tensor, testing.Stream()
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: sys.modules["torch"].stream.ptr)

    class WithFunctions(Tensor):
        __dlpack_c_exchange_api__ = capsule(NEWER)  # which leads to the version that we know

        def __init__(self, x, negative=False):
            self.storage, self.negative, self.asked, self.asked_sign, self.refuses, self.code = Storage(x), negative, 0, 0, False, 0
            self.is_cuda = True

        dtype = property(lambda self: Dtype(self.storage.x.dtype.name))
        shape = property(lambda self: self.storage.x.shape)

        def untyped_storage(self):
            return self.storage

        def data_ptr(self):
            return self.storage.data_ptr()

        def stride(self):
            return tuple(step // self.storage.x.dtype.itemsize for step in self.storage.x.strides)

        def get_device(self):
            return 0

        def is_neg(self):
            self.asked_sign += 1
            return self.negative

        def is_conj(self):
            return False

    module.Described = WithFunctions
    return module


def test_copies_and_views(torch, numbers):
    for index in (np.s_[:], np.s_[::-2, 1::3], np.s_[2, 2, ...]):
        x = torch.Described(testing.array(numbers)[index])
        out = np.empty(numbers[index].shape, np.float32)
        peerlane.copy(out, x)
        assert np.array_equal(out, numbers[index]) and x.asked == 1
        with peerlane.map(x) as m:
            assert np.array_equal(m.array, numbers[index])


def test_a_tensor_with_other_memory_is_described_anew(torch):
    """Resized, or with another tensor's data: each call asks where the memory is."""
    x, out = torch.Described(testing.array([1.0, 2.0])), np.empty(2)
    peerlane.copy(out, x)
    x.storage = Storage(testing.array([3.0, 4.0]))
    peerlane.copy(out, x)
    assert list(out) == [3, 4]
    x.storage.x = testing.array([5.0, 6.0, 7.0])
    with pytest.raises(ValueError, match=r"the source float64\[3\]"):
        peerlane.copy(out, x)
    peerlane.copy(x, np.arange(3.0))
    assert list(x.storage.x.get()) == [0, 1, 2]
    x.storage.x.memory.free()
    with pytest.raises(peerlane.Error, match="freed"):
        peerlane.copy(np.empty(3), x)


def test_the_sign_is_asked_once_for_memory_of_a_tensor(torch):
    out = np.empty(2)
    x = torch.Described(testing.array([1.0, 2.0]))
    for _ in range(5):
        peerlane.copy(out, x)
    assert x.asked == 5 and x.asked_sign == 1
    x.storage, x.negative = Storage(testing.array([1.0, 2.0])), True  # as `x.data = other` does
    with pytest.raises(TypeError, match="resolve_neg"):
        peerlane.copy(out, x)
    memory = testing.array([1.0, 2.0])
    for number in range(600):  # tensors come and go at the same addresses
        x = torch.Described(memory, negative=number % 3 == 2)
        if x.negative:
            with pytest.raises(TypeError, match="resolve_neg"):
                peerlane.copy(out, x)
        else:
            peerlane.copy(out, x)
        assert x.asked_sign == 1
        del x


def test_complex_tensors_are_always_asked(torch):
    x, out = torch.Described(testing.array(np.array([1 + 2j]))), np.empty(1, complex)
    peerlane.copy(out, x)
    peerlane.copy(out, x)
    assert out[0] == 1 + 2j and x.asked_sign == 2


def test_where_the_functions_do_not_help_the_methods_do(torch, numbers):
    x, out = torch.Described(testing.array(numbers)), np.empty_like(numbers)
    x.refuses = True
    peerlane.copy(out, x)
    assert np.array_equal(out, numbers)
    x.refuses, x.code = False, 99  # a type of element that only the dtype's name tells
    out[:] = 0
    peerlane.copy(out, x)
    assert np.array_equal(out, numbers)


def test_the_library_tells_its_current_stream(torch):
    memory, gate, out = testing.zeros(256), testing.zeros(1, np.uint32), np.zeros(256, np.float32)
    x, m = torch.Described(memory), peerlane.map(gate)
    stream = ctypes.c_void_p(torch.stream.ptr)
    cuda = testing.driver()
    cuda.call("cuStreamWaitValue32_v2", stream, ctypes.c_uint64(gate.address), ctypes.c_uint(1), ctypes.c_uint(0))
    cuda.call("cuMemsetD8Async", ctypes.c_uint64(memory.address), ctypes.c_ubyte(0x3F), ctypes.c_size_t(memory.nbytes), stream)
    end = peerlane.copy_async(out, x, after=None)
    end.wait()
    assert (out == 0).all()
    end = peerlane.copy_async(out, x)
    assert not end.done()
    m[0] = 1
    end.wait()
    assert (out.view(np.uint8) == 0x3F).all()


class NotTorch:
    """A class of another library with the same functions."""
    __dlpack_c_exchange_api__ = capsule(FUNCTIONS)
    refuses, code, asked = False, 0, 0

    def __init__(self, x):
        self.storage = Storage(x)


def test_other_libraries_classes(torch, numbers):
    x, out = NotTorch(testing.array(numbers)), np.empty_like(numbers)
    peerlane.copy(out, x)
    assert np.array_equal(out, numbers) and x.asked == 1


# ---- The storage under a mapping -----------------------------------------------------------------------------------------


def test_a_mapping_keeps_the_storage(torch):
    """A tensor that gets other memory (module.to, tensor.set_) does not take the mapped memory away."""
    x = torch.Described(testing.array([1.0, 2.0]))
    with peerlane.map(x) as m:
        x.storage = Storage(testing.array([3.0, 4.0]))
        assert m[0] == 1 and list(m.read()) == [1, 2]
        m[1] = 9
        assert list(m.array) == [1, 9]
        with peerlane.map(m) as again:
            m.close()
            assert again[1] == 9


def test_a_storage_that_is_resized_under_a_mapping(torch):
    """FSDP does so: the allocator gives the memory to others, and the driver does not know."""
    x = torch.Described(testing.array([1.0, 2.0]))
    with peerlane.map(x) as m:
        kept, x.storage.x = x.storage.x, None
        for touch in (lambda: m[0], lambda: m.__setitem__(0, 1), lambda: m.read(), lambda: m.array, lambda: peerlane.copy(np.empty(2), m)):
            with pytest.raises(peerlane.StaleMapping):
                touch()
        x.storage.x = kept
        assert m[0] == 1
