# SPDX-License-Identifier: Apache-2.0
"""Transfers within one agent."""

import time

import numpy as np
from nixl_agents import DeviceMemory, blocks, main, make_agent, pages, pattern, register, transfer, use_gpu, wait

BLOCK = 4096


def moves_scattered_blocks_both_ways():
    agent = make_agent("solo")
    count = 4096
    host, device = pages(count * BLOCK), DeviceMemory(count * BLOCK)
    register(agent, host.ctypes.data, host.nbytes, "DRAM")
    register(agent, device.address, device.size_bytes, "VRAM")
    rng = np.random.default_rng(1)
    there, here = rng.permutation(count), rng.permutation(count)
    want = pattern(host.nbytes, 2)
    host[:] = want
    ended = transfer(agent, "WRITE", (blocks(host.ctypes.data, here, BLOCK), "DRAM"), (blocks(device.address, there, BLOCK), "VRAM"), "solo")
    assert ended == "DONE"
    got = device.read().reshape(count, BLOCK)
    assert (got[there] == want.reshape(count, BLOCK)[here]).all()
    host[:] = 0
    ended = transfer(agent, "READ", (blocks(host.ctypes.data, here, BLOCK), "DRAM"), (blocks(device.address, there, BLOCK), "VRAM"), "solo")
    assert ended == "DONE" and (host == want).all()


if __name__ == "__main__":
    use_gpu()
    main({name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"})
