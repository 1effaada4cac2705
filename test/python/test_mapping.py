# SPDX-License-Identifier: Apache-2.0
"""peerlane.map: what the view shows, single elements, slices, life times, refusals."""

import copy
import errno
import gc
import os
import pickle
import sys
import warnings
import weakref

import numpy as np
import peerlane
import pytest
from peerlane import _mapping, testing

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_dtype(dtype):
    x = testing.zeros((3, 4), dtype)
    value = {"b": True, "c": 1.5 - 2j, "f": -2.5, "i": -3, "u": 200}[np.dtype(dtype).kind]
    with peerlane.map(x) as m:
        m[1, 2] = value
        m.write((2, -1), value)
        assert m[1, 2] == value and m.read((2, 3)) == value and m.array[1, 2] == np.dtype(dtype).type(value)
        assert m.dtype == np.dtype(dtype) and m.nbytes == 12 * np.dtype(dtype).itemsize
        assert type(m[0, 0]) is {"b": bool, "c": complex, "f": float, "i": int, "u": int}[np.dtype(dtype).kind]
    expected = np.zeros((3, 4), dtype)
    expected[1, 2] = expected[2, 3] = value
    assert np.array_equal(x.get(), expected)


def test_memory_is_not_copied_with_its_owner():
    x, stream = testing.array(np.arange(4.0)), testing.Stream()
    for copying in (copy.deepcopy, pickle.dumps):
        for one in (x, x[1:], stream):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copying(one)
    view = copy.copy(x)
    del x
    gc.collect()
    assert (view.get() == np.arange(4)).all()


def test_half_precision_rounds_as_numpy_does():
    bits = np.arange(1 << 16, dtype=np.uint16)
    with peerlane.map(testing.array(bits), dtype="float16") as m:
        for i in range(0, 1 << 16, 97):
            assert np.array_equal(m[i], bits.view(np.float16)[i], equal_nan=True)
        values = [0.0, -0.0, 1 / 3, 65504, 65519.9, 65520, 1e9, 2**-24, 2**-25, 2**-25 * 1.01, 6.1e-5, float("inf"), -1e-30, 2049]
        for value in values:
            m[7] = value
            with np.errstate(over="ignore"):
                assert m.array.view(np.uint16)[7] == np.float16(value).view(np.uint16), value
        m[7] = float("nan")
        assert np.isnan(m.array[7])


def test_bfloat16_is_the_upper_half_of_a_float():
    x = testing.zeros(4, np.uint16)
    with peerlane.map(x, dtype="bfloat16") as m:
        for value, bits in [(1.0, 0x3F80), (-2.5, 0xC020), (1 / 3, 0x3EAB), (1.00390625, 0x3F80), (1.01171875, 0x3F82),
                            (3.4e38, 0x7F80), (1e-40, 0x0001)]:
            m[1] = value
            assert int(x.get()[1]) == bits, value
        m[1] = 1 / 3
        assert m[1] == np.uint32(0x3EAB0000).view(np.float32)
        assert m.dtype_name == "bfloat16" and m.dtype.itemsize == 2


def test_view_is_the_memory(numbers):
    x = testing.array(numbers)
    with peerlane.map(x) as m:
        view = m.array
        assert np.array_equal(view, numbers) and view.shape == (6, 8) and view.strides == numbers.strides
        view[3, 5] = -7
        view[1:3, ::2] = 100
        m.flush()
    numbers[3, 5] = -7
    numbers[1:3, ::2] = 100
    assert np.array_equal(x.get(), numbers)


STRIDED = [np.s_[::2], np.s_[::-1], np.s_[1:5, ::-3], np.s_[:, 3], np.s_[None, 2:2], np.s_[5, 7], np.s_[...]]


@pytest.mark.parametrize("index", STRIDED, ids=str)
def test_strides_of_the_tensor(numbers, index):
    x = testing.array(numbers)
    part = x[index]
    with peerlane.map(part) as m:
        assert np.array_equal(m.array, numbers[index]) and m.shape == numbers[index].shape
        assert np.array_equal(m.read(), numbers[index])
        if m.array.size:
            m[...] = numbers[index] + 1
    numbers[index] += 1
    assert np.array_equal(x.get(), numbers)


@pytest.mark.parametrize("index", [np.s_[2], np.s_[1:3], np.s_[::-1, 2], np.s_[..., 4:], np.s_[[0, 5, 1]], np.s_[:, [1, 1]],
                                   np.s_[np.int64(3), 2], np.s_[None, 1]], ids=str)
def test_slices_are_copied(numbers, index):
    x = testing.array(numbers)
    with peerlane.map(x) as m:
        assert np.array_equal(m[index], numbers[index])
        got = m.read(index)
        m[index] = 3
        m.write(index, np.asarray(got) * 2)
    numbers[index] *= 2
    assert np.array_equal(x.get(), numbers)


def test_dlpack_alone(numbers, only_dlpack):
    with peerlane.map(only_dlpack(testing.array(numbers)[:, ::2])) as m:
        assert np.array_equal(m.array, numbers[:, ::2])


def test_pointer_and_size(numbers):
    x = testing.array(numbers)
    with peerlane.map((x.address + 4, 12)) as m:
        assert m.array.tobytes() == numbers.tobytes()[4:16]
    with peerlane.map((x.address, x.nbytes), dtype=np.float32, shape=(8, 6)) as m:
        assert m[7, 5] == 47
    with peerlane.map((x.address + 1, 4), dtype="float32") as m:  # unaligned: allowed, as for GDRCopy's stores
        m[0] = 2.5
        assert m[0] == 2.5 and m.array[0] == 2.5
    with pytest.raises(ValueError, match="5 bytes are not a whole number of float32"):
        peerlane.map((x.address, 5), dtype="float32")
    with pytest.raises(ValueError, match="shape and dtype take 16 bytes, the memory has 12"):
        peerlane.map((x.address, 12), shape=(4, 4))


def test_the_tensor_lives_as_long_as_a_view():
    x = testing.zeros(16)
    memory = weakref.ref(x.memory)
    m = peerlane.map(x)
    view = m.array[3:]
    del x
    m.close()
    gc.collect()
    view[0] = 4
    assert memory() is not None and view[0] == 4
    del view, m
    gc.collect()
    assert memory() is None


def test_closed():
    m = peerlane.map(testing.zeros(4))
    m.close()
    m.close()
    for touch in (lambda: m[0], lambda: m.write(0, 1), lambda: m.array, lambda: m.read(), m.flush, m.info,
                  lambda: peerlane.copy(np.empty(4, np.float32), m)):
        with pytest.raises(ValueError, match="closed"):
            touch()
    assert "closed" in repr(m)


def test_bad_indices_and_values():
    with peerlane.map(testing.zeros((2, 3), np.int8)) as m:
        for index in [(2, 0), (0, 3), (-3, 0), (0, 1 << 70)]:
            with pytest.raises(IndexError):
                m[index]
            with pytest.raises(IndexError):
                m[index] = 1
        with pytest.raises(OverflowError, match="does not fit into int8"):
            m[0, 0] = 128
        with pytest.raises(TypeError):
            m[0, 0] = "1"
        with pytest.raises(TypeError):
            m[0, 0] = 1.5
        with pytest.raises(ValueError):
            m[0] = [1, 2]


def test_refusals_name_the_cause():
    managed = testing.empty(4, managed=True)
    with pytest.raises(peerlane.Error, match="managed") as told:
        peerlane.map(managed)
    assert told.value.errno == errno.EINVAL
    with pytest.raises(peerlane.Error, match="numpy.ndarray lies in host memory"):
        peerlane.map(np.zeros(4))
    freed = testing.zeros(4)
    freed.memory.free()
    with pytest.raises(peerlane.Error) as told:
        peerlane.map(freed)
    assert told.value.errno == errno.EINVAL
    x = testing.zeros(4)
    with pytest.raises(peerlane.Error, match="leaves its allocation"):
        peerlane.map((x.address, 8 << 20))
    with pytest.raises(TypeError, match="does not describe its memory"):
        peerlane.map(object())


def test_empty():
    with peerlane.map(testing.empty((0, 3))) as m:
        assert m.array.shape == (0, 3) and m.read().shape == (0, 3) and m.nbytes == 0
        m[...] = np.empty((0, 3), np.float32)
        with pytest.raises(IndexError):
            m[0, 0]


def test_read_only_tensors_are_not_written():
    class ReadOnly:
        def __init__(self, x):
            self.x = x
            self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "data": (x.address, True)}

    x = testing.zeros(4)
    with peerlane.map(ReadOnly(x)) as m:
        assert m[0] == 0
        for write in (lambda: m.write(0, 1), lambda: m.array.__setitem__(0, 1), lambda: m.write(np.s_[:2], 1)):
            with pytest.raises(ValueError, match="read-only"):
                write()
    with pytest.raises(ValueError, match="read-only"):
        peerlane.copy(ReadOnly(x), np.zeros(4, np.float32))


def test_big_reads_warn_once_with_numbers(monkeypatch):
    monkeypatch.setattr(_mapping, "_warned", False)
    with peerlane.map(testing.zeros(1 << 18, np.uint8)) as m:
        view = m.array
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            view[5] = 1
            view[:100] += 1
            m.read()
            assert not told
            assert int(view.sum()) == 101
            view.copy()
            np.concatenate([view, view])
        assert len(told) == 1 and "262144 bytes" in str(told[0].message) and told[0].category is peerlane.SlowReadWarning
        assert told[0].filename == __file__


def test_results_are_ordinary_arrays(numbers):
    with peerlane.map(testing.array(numbers)) as m:
        view = m.array
        results = [view + 1, np.sqrt(view), np.concatenate([view, view]), view.copy(), view.astype("f8"), np.stack([view]),
                   pickle.loads(pickle.dumps(view))]
        assert {type(each) for each in results} == {np.ndarray}
        assert np.array_equal(results[0], numbers + 1) and np.array_equal(results[-1], numbers)
        view *= 2
        np.add(view, 1, out=view)
        np.copyto(view[0], 5)
        m.flush()
        assert type(view) is peerlane.MappedArray and view.tolist()[1] == (numbers[1] * 2 + 1).tolist()
        assert (m[0] == 5).all()


def test_as_an_array(numbers, monkeypatch):
    """NumPy fetches all at once; a mapping would else look like a sequence, of which it asks every element."""
    with peerlane.map(testing.array(numbers)) as m, peerlane.map(testing.array(np.float32(3))) as single:
        calls = []
        monkeypatch.setattr(peerlane.Mapping, "_read_any", lambda self, index, real=peerlane.Mapping._read_any: calls.append(index) or real(self, index))
        assert np.array_equal(np.asarray(m), numbers) and np.array_equal(np.array(m, dtype="f8"), numbers) and len(calls) == 2
        assert np.asarray(m, dtype="f8").dtype == np.float64 and np.asarray(single).shape == ()
        out = np.zeros_like(numbers)
        out[:] = m
        assert np.array_equal(out, numbers)
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            with pytest.raises(ValueError, match="mapping.array"):
                np.asarray(m, copy=False)


def test_facts():
    x = testing.zeros(4)
    with peerlane.map(x) as m:
        told = m.info()
        assert told["backend"] == "dmabuf" and told["device_ptr"] == x.address and told["mapped_bytes"] == 16
        assert len(m) == 4 and m.closed is False and m.strides == (4,)


def test_a_forked_child_is_refused():
    with peerlane.map(testing.zeros(4)) as m:
        pid = os.fork()
        if pid == 0:
            try:
                m[0] = 1
            except peerlane.Error as why:
                os._exit(why.errno)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EACCES


def test_memory_in_a_forked_child_is_refused():
    """One error, and no further one when the object that was not made goes."""
    pid = os.fork()
    if pid == 0:
        sys.unraisablehook = lambda *_: os._exit(4)
        try:
            testing.zeros(4)
        except testing.CudaError:
            pass
        else:
            os._exit(5)
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
