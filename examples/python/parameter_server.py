#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of a parameter server that is the store: two workers put their gradients from GPU memory and get the parameters into it.

The other way: copies to the host and NumPy files in shared memory (/dev/shm).
"""

import subprocess
import tempfile
from pathlib import Path

import gpu
import numpy as np
import peerlane
from peerlane import _native

PARAMETERS = 1 << 18  # 1 MiB
RATE = 0.5


def serve(folder):
    """A store in this folder; the first thing that it says is that it serves."""
    server = subprocess.Popen([_native.program(), "store", "serve", "--data", folder, "--listen", "none", "--arena", "256M",
                               "--chunk", "256M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    server.stdout.readline()
    return server


def work(rank, _, folder, rounds):
    """One worker: its gradient goes up, the parameters come down."""
    device = gpu.device_of(rank)
    gpu.testing.driver().enter(device)
    parameters, gradient = gpu.zeros(PARAMETERS, device=device), gpu.zeros(PARAMETERS, device=device)
    peerlane.fill(gradient, 1 + rank)
    with peerlane.store.open(f"{folder}/store.sock") as store:
        pool = store.open_pool("model")

        def step(_):
            pool.put(f"gradient{rank}", gradient, durability="volatile")
            pool.get("parameters", parameters)

        ours = gpu.median_us(step, rounds)

    def by_files(_):
        np.save(f"{folder}/gradient{rank}.npy", gpu.host(gradient))
        peerlane.copy(parameters, np.load(f"{folder}/parameters.npy"))

    if rank == 0:
        theirs = gpu.median_us(by_files, rounds)
        gpu.effect(ours, theirs, "a step with 1 MiB of parameters by the store", "host copies and files in memory")


def main():
    rounds = gpu.rounds(__doc__, 100)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        server = serve(folder)
        try:
            with peerlane.store.open(f"{folder}/store.sock") as store:
                pool = store.create_pool("model", durability="volatile")
                values = np.zeros(PARAMETERS, np.float32)
                pool.put("parameters", values)
                np.save(f"{folder}/parameters.npy", values)
                gpu.run_pair(work, folder, rounds)
                for rank in range(2):  # the server's part of a step, here once
                    gradient = np.empty(PARAMETERS, np.float32)
                    pool.get(f"gradient{rank}", gradient)
                    values -= RATE * gradient
                pool.put("parameters", values)
                assert values[0] == -RATE * 3
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
