#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the package with tensors of the real libraries on a real GPU: scripts/gpu/python_check.py. Libraries that are not installed are
named and skipped; the last line has counts. Uses no test framework, because the machine may have none."""

import asyncio
import importlib
import sys
import traceback

import numpy as np
import peerlane
from peerlane import testing


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!s}"
        return
    raise AssertionError(f"no {kind.__name__}")


# ---- PyTorch -----------------------------------------------------------------------------------------------------------


def torch_views(torch):
    x = torch.arange(48, dtype=torch.float32, device="cuda").reshape(6, 8)
    for part in (x, x[::2], x.t(), x[:, 3], x[2, 5], x[1:1], x[:, ::3], torch.nn.Parameter(x)):
        torch.cuda.synchronize()
        with peerlane.map(part) as m:
            assert np.array_equal(m.array, part.detach().cpu().numpy()) and np.array_equal(m.read(), part.detach().cpu().numpy())
    with peerlane.map(x) as m:
        m[3, 5] = 7.0
        m.array[0] = -1
        m.flush()
        assert m[3, 5] == 7.0 and x[3, 5].item() == 7.0 and (x[0] == -1).all().item()


def torch_dtypes(torch):
    for name in ("float16", "bfloat16", "float64", "int8", "int64", "bool", "complex64", "uint8"):
        x = torch.ones(5, dtype=getattr(torch, name), device="cuda")
        torch.cuda.synchronize()
        with peerlane.map(x) as m:
            assert m[2] == 1, name
            m[1] = 0
            assert x[1].item() == 0 and m.dtype_name == name
    if hasattr(torch, "float8_e4m3fn"):
        x = torch.ones(4, device="cuda").to(torch.float8_e4m3fn)
        torch.cuda.synchronize()
        with peerlane.map(x) as m:
            assert m.array.view(np.uint8).tolist() == x.view(torch.uint8).tolist()


def torch_copies_in_order(torch):
    """A copy sees the work that was queued before it on the current stream, and later work sees the copy."""
    out = np.empty((1024, 1024), np.float32)
    stream = torch.cuda.Stream()
    for current in (torch.cuda.default_stream(), stream):
        with torch.cuda.stream(current):
            for i in range(5):
                x = torch.full((1024, 1024), 1.0, device="cuda")
                for _ in range(20):
                    x = x @ torch.eye(1024, device="cuda")
                x.add_(i)
                peerlane.copy(out, x)
                assert (out == 1 + i).all()
                peerlane.copy(x, out * 2)
                assert (x.sum() == 2 * (1 + i) * 2**20).item()
    torch.cuda.synchronize()


def torch_asynchronous(torch):
    x = torch.zeros(1 << 24, dtype=torch.uint8, device="cuda")
    host = torch.ones(1 << 24, dtype=torch.uint8).pin_memory()

    async def run():
        await peerlane.copy_async(x, host)

    asyncio.run(run())
    assert x.min().item() == 1
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    end = peerlane.copy_async(x, host.add_(1))
    end.make_wait(stream)
    with torch.cuda.stream(stream):
        total = x.sum(dtype=torch.int64)
    stream.synchronize()
    assert total.item() == 2 << 24
    event.record()
    end.record(event)
    event.synchronize()
    end.wait()
    peerlane.fill(x, 5)
    assert x.max().item() == 5 == x.min().item()
    y = torch.empty(1 << 22, dtype=torch.bfloat16, device="cuda")
    peerlane.fill(y, 1.5)
    assert (y == 1.5).all().item()


def torch_refusals(torch):
    raises(peerlane.Error, "host memory", lambda: peerlane.map(torch.zeros(4)))
    raises(ValueError, "one shape and one dtype", lambda: peerlane.copy(torch.zeros(4, device="cuda"), np.zeros(4)))
    raises(TypeError, "resolve_conj", lambda: peerlane.map(torch.ones(4, dtype=torch.complex64, device="cuda").conj()))
    raises(ValueError, "gaps", lambda: peerlane.map(torch.zeros(4, 4, device="cuda")[:, 1], dtype="uint8"))


def torch_graphs(torch):
    """A copy that would wait for a stream in capture is refused and does not damage the graph; after=None copies independently of it."""
    x, host = torch.zeros(64, device="cuda"), np.ones(64, np.float32)
    peerlane.copy(host, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        for call in (lambda: peerlane.copy(host, x), lambda: peerlane.copy(x, host), lambda: peerlane.fill(x, 1),
                     lambda: peerlane.copy_async(host, x)):
            raises(peerlane.Error, "is being captured", call)
        peerlane.copy(host, x, after=None)
    assert (host == 0).all()
    graph.replay()
    graph.replay()
    peerlane.copy(host, x)
    assert (host == 2).all()


def torch_storages(torch):
    """A mapping keeps the storage it was made of, and raises an error if that has lost its memory; copies use the tensor's present memory."""
    x, out = torch.arange(4.0, device="cuda"), np.empty(4, np.float32)
    torch.cuda.synchronize()
    with peerlane.map(x) as m:
        x.data = torch.full((4,), 9.0, device="cuda")
        peerlane.copy(out, x)
        assert m[3] == 3.0 and (out == 9).all()
    y = torch.arange(4.0, device="cuda")
    torch.cuda.synchronize()
    with peerlane.map(y) as m:
        y.untyped_storage().resize_(0)
        raises(peerlane.StaleMapping, "freed", lambda: m[0])
    z = torch.zeros(2, device="cuda").resize_(1 << 20)
    peerlane.copy(z, np.full(1 << 20, 5, np.float32))
    assert z.sum().item() == 5 << 20
    negative = torch.ones(4, dtype=torch.complex64, device="cuda").conj().imag
    raises(TypeError, "resolve_neg", lambda: peerlane.copy(out, negative))


# ---- The others --------------------------------------------------------------------------------------------------------


def cupy_arrays(cupy):
    x = cupy.arange(48, dtype=cupy.float32).reshape(6, 8)
    for part in (x, x[::-1], x[:, ::3], x.T, x[2, 5], x[1:1]):
        cupy.cuda.Device().synchronize()
        with peerlane.map(part) as m:
            assert np.array_equal(m.array, part.get())
    out = np.empty((6, 8), np.float32)
    with cupy.cuda.Stream(non_blocking=True):
        for i in range(10):
            x *= 1
            x += 1
            peerlane.copy(out, x)
            assert out[0, 0] == i + 1
    managed = cupy.ndarray(4, cupy.float32, cupy.cuda.malloc_managed(16))
    raises(peerlane.Error, "managed", lambda: peerlane.map(managed))


def jax_arrays(jax):
    x = jax.device_put(np.arange(48, dtype=np.float32).reshape(6, 8)) * 2
    with peerlane.map(x) as m:
        assert np.array_equal(m.read(), np.arange(48, dtype=np.float32).reshape(6, 8) * 2)
    out = np.empty((6, 8), np.float32)
    peerlane.copy(out, x + 1)
    assert out[5, 7] == 95
    half = jax.numpy.ones(4, jax.numpy.bfloat16)
    with peerlane.map(half) as m:
        assert m[2] == 1.0 and m.dtype_name == "bfloat16"


def between_libraries(torch, cupy):
    x, y = torch.zeros(1 << 16, device="cuda"), cupy.arange(1 << 16, dtype=cupy.float32)
    peerlane.copy(x, y)
    assert x[-1].item() == 65535
    peerlane.copy(y, x + 1)
    assert y[-1].item() == 65536


def package_itself():
    x = testing.array(np.arange(16, dtype=np.float32))
    with peerlane.map(x, verify=True) as m:
        print(f"mapping: {m.info()['backend']}, {m.info()['mapping_type']}")
        assert m[7] == 7
    freed = testing.zeros(4)
    freed.memory.free()
    raises(peerlane.Error, "", lambda: peerlane.map(freed))
    raw = testing.array(np.arange(1 << 20, dtype=np.uint8))
    with peerlane.map((raw.address, raw.nbytes)) as m:
        assert m[5] == 5
        raw.memory.free()
        kept = testing.zeros(1 << 20, np.uint8)  # often at the same address
        raises(peerlane.StaleMapping, "freed", lambda: m[5])
        raises(peerlane.StaleMapping, "freed", m.read)
        del kept

    async def in_a_task():
        await asyncio.create_task(peerlane.copy_async(x, np.ones(16, np.float32)))

    asyncio.run(in_a_task())
    assert (x.get() == 1).all()
    assert not [f for f in peerlane.doctor() if f["level"] == "BLOCKER"]


CASES = [(package_itself, []), (torch_views, ["torch"]), (torch_dtypes, ["torch"]), (torch_copies_in_order, ["torch"]),
         (torch_asynchronous, ["torch"]), (torch_refusals, ["torch"]), (torch_graphs, ["torch"]), (torch_storages, ["torch"]), (cupy_arrays, ["cupy"]), (jax_arrays, ["jax"]),
         (between_libraries, ["torch", "cupy"])]


def main():
    passed = failed = left_out = 0
    for case, needed in CASES:
        try:
            modules = [importlib.import_module(name) for name in needed]
        except ImportError as error:
            print(f"left out  {case.__name__}: {error}")
            left_out += 1
            continue
        try:
            case(*modules)
            print(f"passed    {case.__name__}")
            passed += 1
        except Exception:
            print(f"FAILED    {case.__name__}")
            traceback.print_exc(file=sys.stdout)
            failed += 1
    print(f"python_check: {passed} passed, {failed} failed, {left_out} left out"
          f"{' (SIMULATED GPU)' if testing.is_simulated() else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
