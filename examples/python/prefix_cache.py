#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A prefix cache that two workers share: one puts its blocks by one call, the other is told which there are and gets them by one call.

The other way: one put and one get for each block.
"""

import subprocess
import tempfile
import threading
import time
from pathlib import Path

import gpu
import numpy as np
import peerlane
from peerlane import _native

BLOCKS, BLOCK_BYTES = 256, 4096


def serve(folder):
    """A store in this folder; the first thing that it says is that it serves."""
    server = subprocess.Popen([_native.program(), "store", "serve", "--data", folder, "--listen", "none", "--arena", "256M",
                               "--chunk", "256M"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    server.stdout.readline()
    return server


def follow(watch, known):
    """The worker that gets: what is in the cache, as it is told."""
    for change in watch:
        if change.kind == "put":
            known.add(change.key)
        else:  # erased, evicted, or (lost) not known: such a worker would scan again
            known.discard(change.key)


def main():
    rounds = gpu.rounds(__doc__, 30)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        server = serve(folder)
        try:
            with peerlane.store.open(f"{folder}/store.sock") as store:
                pool = store.create_pool("blocks", cache=True)
                keys = [b"prompt/%d" % i for i in range(BLOCKS)]
                blocks = {key: np.full(BLOCK_BYTES, i % 251, np.uint8) for i, key in enumerate(keys)}
                back = {key: np.zeros(BLOCK_BYTES, np.uint8) for key in keys}
                known = set()
                watch = pool.watch("prompt/")
                follower = threading.Thread(target=follow, args=(watch, known))
                follower.start()

                def by_one_call(_):
                    pool.multi_put(blocks)
                    assert all(reply.moved_bytes == BLOCK_BYTES for reply in pool.multi_get(back))

                def one_by_one(_):
                    for key in keys:
                        pool.put(key, blocks[key])
                    for key in keys:
                        pool.get(key, back[key])

                ours, theirs = gpu.median_us(by_one_call, rounds), gpu.median_us(one_by_one, rounds)
                assert all(np.array_equal(back[key], blocks[key]) for key in keys)
                while len(known) < BLOCKS:
                    time.sleep(0.01)
                watch.close()
                follower.join()
                assert known == set(keys)
                gpu.effect(ours, theirs, f"putting and getting {BLOCKS} blocks by one call", "one by one")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
