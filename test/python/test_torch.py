# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch, played by a module with its names: what is asked of them, and the stream they come from.

The real ones are used by scripts/gpu/python.sh, on a GPU.
"""

import ctypes
import sys
import threading
import types

import numpy as np
import peerlane
import pytest
from peerlane import testing


class Dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


class Tensor:
    """What peerlane asks of torch.Tensor; also what it must not ask, since a tensor with requires_grad refuses it."""

    def __init__(self, x, dtype, is_cuda=True, is_neg=False):
        self.x, self.dtype, self.is_cuda, self._is_neg = x, dtype, is_cuda, is_neg
        self.shape = x.shape

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("requires_grad")

    __dlpack__ = __cuda_array_interface__

    def data_ptr(self):
        return self.x.address if self.is_cuda else self.x.ctypes.data

    def stride(self):
        return tuple(step // self.x.dtype.itemsize for step in self.x.strides)

    def get_device(self):
        return 0

    def is_neg(self):
        return self._is_neg

    def is_conj(self):
        return False


@pytest.fixture(scope="module")
def torch():
    """Stays in sys.modules: the package looks once."""
    module = types.ModuleType("torch")
    module.Tensor = Tensor
    module.float32, module.bfloat16, module.quint4 = Dtype("float32"), Dtype("bfloat16"), Dtype("quint4x2")
    module.stream = testing.Stream()
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: module.stream.ptr)
    sys.modules["torch"] = module
    return module


def test_map(torch, numbers):
    with peerlane.map(Tensor(testing.array(numbers)[:, ::-2], torch.float32)) as m:
        assert np.array_equal(m.array, numbers[:, ::-2])
        m[2, 1] = 8
        assert m[2, 1] == 8


def test_bfloat16_without_ml_dtypes(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = testing.zeros(4, np.uint16)
    t = Tensor(x, torch.bfloat16)
    with peerlane.map(t) as m:
        m[2] = -2.5
        assert m[2] == -2.5 and m.dtype == np.uint16 and m.read()[2] == 0xC020
        bits = np.array([0x3F80, 0, 0, 0x4000], np.uint16)
        peerlane.copy(t, bits)
        assert m[0] == 1.0 and m[3] == 2.0
        peerlane.fill(t, 3.0)
    assert (x.get() == 0x4040).all()


def test_on_the_host(torch, numbers):
    x = testing.zeros(numbers.shape)
    host = Tensor(numbers, torch.float32, is_cuda=False)
    peerlane.copy(x, host)
    assert np.array_equal(x.get(), numbers)
    with pytest.raises(peerlane.Error, match="host memory"):
        peerlane.map(host)


def test_what_is_not_in_memory_is_refused(torch):
    x = testing.zeros(4)
    with pytest.raises(TypeError, match="resolve_neg"):
        peerlane.map(Tensor(x, torch.float32, is_neg=True))
    with pytest.raises(TypeError, match="quint4x2 are not supported"):
        peerlane.map(Tensor(x, torch.quint4))


def test_copies_come_after_the_current_stream(torch):
    x = testing.zeros(256, np.float32)
    gate = testing.zeros(1, np.uint32)
    stream = ctypes.c_void_p(torch.stream.ptr)
    cuda = testing.driver()
    cuda.call("cuStreamWaitValue32_v2", stream, ctypes.c_uint64(gate.address), ctypes.c_uint(1), ctypes.c_uint(0))
    cuda.call("cuMemsetD8Async", ctypes.c_uint64(x.address), ctypes.c_ubyte(0x3F), ctypes.c_size_t(x.nbytes), stream)
    out = np.zeros(256, np.float32)
    copier = threading.Thread(target=peerlane.copy, args=(out, Tensor(x, torch.float32)))
    copier.start()
    peerlane.map(gate).write(0, 1)
    copier.join()
    assert (out.view(np.uint8) == 0x3F).all()
