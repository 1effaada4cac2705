# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while daemon threads are in calls: exit code 0, no word, no hang."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
import numpy as np, peerlane
from peerlane import communicator, testing

def forever(call):
    def loop():
        while True:
            try:
                call()
            except (peerlane.Error, ValueError):
                time.sleep(0.001)
    return loop

job = communicator.open(rank=0, size=1, host_only=True)
small, large = np.zeros(8), np.zeros(1 << 20)
gpu = testing.zeros((1 << 20,))
mapping = peerlane.map(gpu)
pending = job.irecv(0, small, 1)
pool = peerlane.HostPool(1 << 20)

def exchange():
    received = job.irecv(0, small, 2)
    job.isend(0, small, 2).wait(5)
    received.wait(5)

def call_back():
    received = job.irecv(0, small, 3)
    received.then(lambda code: None)
    job.isend(0, small, 3).wait(5)
    received.wait(5)

CALLS = {
    "progress": job.progress, "wait": lambda: pending.wait(None), "wait_all": lambda: peerlane.wait_all([pending], 5), "exchange": exchange,
    "then": call_back, "recv": lambda: job.recv(0, small, 4, timeout=5), "all_reduce": lambda: job.iall_reduce(small).wait(5),
    "copy": lambda: peerlane.copy(large, gpu), "copy_async": lambda: peerlane.copy_async(gpu, large).wait(), "map": lambda: peerlane.map(gpu).close(),
    "element": lambda: mapping.__setitem__(0, 1.0), "host_pool": lambda: peerlane.HostPool(1 << 16).wait(), "pool_wait": pool.wait,
}
for _ in range(2):
    threading.Thread(target=forever(CALLS[sys.argv[1]]), daemon=True).start()
time.sleep(0.1)
"""
CALLS = ["progress", "wait", "wait_all", "exchange", "then", "recv", "all_reduce", "copy", "copy_async", "map", "element", "host_pool", "pool_wait"]


@pytest.mark.parametrize("call", CALLS)
def test_daemon_threads_are_in_calls(call):
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", PROGRAM, call], capture_output=True, timeout=100, check=False,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert (ended.returncode, ended.stderr.decode()) == (0, "")
