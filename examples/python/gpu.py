# SPDX-License-Identifier: Apache-2.0
"""What the examples share: PyTorch where it has a GPU, else peerlane.testing; timing; two processes that work together."""

import argparse
import ctypes
import multiprocessing
import statistics
import tempfile
import time

import numpy as np
from peerlane import testing


def torch_or_none():
    """PyTorch, if it is here and sees a GPU; never beside the simulated GPU."""
    if testing.is_simulated():
        return None
    try:
        import torch
        return torch if torch.cuda.is_available() else None
    except ImportError:
        return None


def zeros(shape, dtype="float32", device=0):
    torch = torch_or_none()
    if torch:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=f"cuda:{device}")
    return testing.zeros(shape, dtype, device=device)


def device_of(rank):
    """Ranks take the GPUs in turn."""
    count = ctypes.c_int()
    testing.driver().call("cuDeviceGetCount", ctypes.byref(count))
    return rank % count.value


def rounds(about, default):
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=default)
    return parser.parse_args().rounds


def median_us(call, rounds):
    times = []
    for i in range(rounds):
        start = time.perf_counter_ns()
        call(i)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def effect(ours, theirs, task, other):
    """The last line of an example."""
    gpu = "simulated GPU (no GPU's figures)" if testing.is_simulated() else "GPU"
    print(f"effect: {task} takes {ours:.1f} us, {other} {theirs:.1f} us ({theirs / ours:.1f}x) on the {gpu}")


def run_pair(function, *arguments):
    """function(rank, rendezvous, ...) in two processes; ends when both have."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pair = [spawn.Process(target=function, args=(rank, f"file:{folder}", *arguments)) for rank in range(2)]
        for each in pair:
            each.start()
        for each in pair:
            each.join()
        if any(each.exitcode for each in pair):
            raise SystemExit("a process of the example failed")


def host(x):
    """The elements of a GPU array as a NumPy array, by its own library."""
    return x.cpu().numpy() if hasattr(x, "cpu") else np.asarray(x.get())
