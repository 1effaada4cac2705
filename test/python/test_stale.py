# SPDX-License-Identifier: Apache-2.0
"""Mappings of memory that is gone: freed, freed and allocated anew at the same address, mapped anew in a reservation, or of the
parent process. Every call gives one answer, an error that says so; never old bytes from one call and new ones from another."""

import ctypes
import errno
import faulthandler
import os
import signal

import numpy as np
import peerlane
import pytest
from peerlane import testing

SIZE = 4 << 20  # two blocks of physical memory: what is allocated next gets others


def call(name, *arguments):
    testing.driver().call(name, *arguments)


def allocate():
    address = ctypes.c_uint64()
    testing.driver().enter(0)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
    return address.value


def free(address):
    call("cuMemFree_v2", ctypes.c_uint64(address))


def touches(m):
    """Every way to the memory that begins at the mapping."""
    return [lambda: m[5], lambda: m.read(5), lambda: m.__setitem__(5, 1), lambda: m.write(5, 1), lambda: m.read(), lambda: m[2:9],
            lambda: m.write(np.s_[2:9], 3), lambda: m.array, lambda: peerlane.copy(np.empty(SIZE, np.uint8), m),
            lambda: peerlane.copy(m, np.empty(SIZE, np.uint8)), lambda: peerlane.copy_async(m, np.empty(SIZE, np.uint8)),
            lambda: peerlane.map(m), lambda: peerlane.fill(m, 1)]


def must_all_be_stale(m):
    for number, touch in enumerate(touches(m)):
        with pytest.raises(peerlane.StaleMapping, match="freed or mapped anew") as told:
            touch()
        assert told.value.errno == errno.ESTALE and isinstance(told.value, peerlane.Error), number


def test_freed_and_allocated_anew_at_the_same_address():
    address = allocate()
    m = peerlane.map((address, SIZE))
    m[5] = 11
    view = m.array
    free(address)
    again = allocate()
    assert again == address, "the simulated GPU gives the address again"
    peerlane.copy((again, SIZE), np.full(SIZE, 22, np.uint8))
    must_all_be_stale(m)
    assert view[5] == 11  # a view goes on showing what was mapped, which it keeps
    with peerlane.map((again, SIZE)) as fresh:
        assert fresh[5] == 22 == fresh.read()[5]
    m.close()
    free(again)


def test_freed():
    x = testing.zeros(SIZE, np.uint8)
    with peerlane.map(x) as m:
        m[5] = 1
        x.memory.free()
        must_all_be_stale(m)
        assert m.shape == (SIZE,) and "float" not in repr(m)  # what needs no memory still answers


def test_freed_inside_a_block_that_lives_on():
    """Small allocations share 2 MiB of physical memory, which stays when one of them goes."""
    first, second = testing.zeros(16, np.uint8), testing.zeros(16, np.uint8)
    m, other = peerlane.map(first), peerlane.map(second)
    first.memory.free()
    with pytest.raises(peerlane.StaleMapping):
        m[5]
    assert other[5] == 0


def test_a_reservation_mapped_anew(reservation):
    """Memory under virtual memory management is another, though the address and its buffer id are the same."""
    address, size, map_piece, unmap_piece = reservation
    map_piece(0)
    map_piece(1)
    m = peerlane.map((address, 2 * size))
    m[5], m[size + 5] = 1, 2
    unmap_piece(1)
    map_piece(1)
    assert m[5] == 1  # its piece is as it was
    with pytest.raises(peerlane.StaleMapping):
        m[size + 5]
    with pytest.raises(peerlane.StaleMapping):
        m.array
    m.close()


@pytest.fixture
def reservation():
    """(address, bytes of a piece, map_piece(i), unmap_piece(i)) of a reserved range of two pieces."""
    class Property(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int), ("location_id", ctypes.c_int),
                    ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]

    class Access(ctypes.Structure):
        _fields_ = [("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int)]

    testing.driver().enter(0)
    size, address, u64, size_t = 2 << 20, ctypes.c_uint64(), ctypes.c_uint64, ctypes.c_size_t
    call("cuMemAddressReserve", ctypes.byref(address), size_t(2 * size), size_t(0), u64(0), u64(0))

    def map_piece(number):
        handle, what = u64(), Property(type=1, location_type=1)
        what.flags[1] = 1  # gpuDirectRDMACapable
        call("cuMemCreate", ctypes.byref(handle), size_t(size), ctypes.byref(what), u64(0))
        call("cuMemMap", u64(address.value + number * size), size_t(size), size_t(0), handle, u64(0))
        call("cuMemSetAccess", u64(address.value + number * size), size_t(size), ctypes.byref(Access(1, 0, 3)), size_t(1))
        call("cuMemRelease", handle)

    def unmap_piece(number):
        call("cuMemUnmap", u64(address.value + number * size), size_t(size))

    yield address.value, size, map_piece, unmap_piece
    unmap_piece(0)
    unmap_piece(1)
    call("cuMemAddressFree", address, size_t(2 * size))


# ---- After fork ----------------------------------------------------------------------------------------------------------


def in_child(act):
    """The exit status of a forked child: the errno of the peerlane.Error that act() raises, 0 for none, -n for signal n."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except peerlane.Error as why:
            os._exit(why.errno)
        except BaseException:
            os._exit(255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_is_told():
    """Every call of the mapping, and what a view computes by NumPy's functions."""
    with peerlane.map(testing.zeros(16)) as m:
        view = m.array
        for number, act in enumerate([
                lambda: m[0], lambda: m.read(), lambda: m.__setitem__(0, 1), lambda: m.write(np.s_[:], 1), lambda: m.array, m.info, m.flush,
                lambda: peerlane.copy(np.empty(16, np.float32), m), lambda: peerlane.map(m), lambda: view + 1, lambda: view.copy(),
                lambda: view.tolist(), lambda: view.tobytes(), lambda: view.astype("f8"), lambda: np.concatenate([view, view]),
                lambda: np.copyto(view, 1), lambda: repr(view), lambda: str(view), lambda: view.__iadd__(1)]):
            assert in_child(act) == errno.EACCES, number
        assert in_child(m.close) == 0
        assert m[0] == 0 and view[0] == 0  # the parent's is untouched


def test_copies_in_a_forked_child():
    stream = testing.Stream()
    x, host = testing.zeros(16, stream=stream), np.zeros(16, np.float32)
    peerlane.copy(host, x)
    for number, act in enumerate([lambda: peerlane.copy(host, x), lambda: peerlane.copy(x, host, after=None), lambda: peerlane.fill(x, 1),
                                  lambda: peerlane.copy(host, x, after=stream), lambda: peerlane.copy_async(host, x),
                                  lambda: peerlane.copy_async(host, x, after=None)]):
        assert in_child(act) == errno.EACCES, number


def test_elements_of_a_view_in_a_forked_child_are_a_fault():
    """What docs/python.md says: a plain load there has no way to raise."""
    with peerlane.map(testing.zeros(16)) as m:
        view = m.array
        assert in_child(lambda: (faulthandler.disable(), view[0])) == -signal.SIGSEGV
