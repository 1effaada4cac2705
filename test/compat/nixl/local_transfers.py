# SPDX-License-Identifier: Apache-2.0
"""Transfers within one agent."""

import nixl_agents
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


def moves_a_hundred_thousand_descriptors():
    agent = make_agent("solo")
    count, block = 100_000, 64
    host, device = pages(count * block), DeviceMemory(count * block)
    register(agent, host.ctypes.data, host.nbytes, "DRAM")
    register(agent, device.address, device.size_bytes, "VRAM")
    rng = np.random.default_rng(3)
    there, here = rng.permutation(count), rng.permutation(count)
    host[:] = want = pattern(host.nbytes, 4)
    ended = transfer(agent, "WRITE", (blocks(host.ctypes.data, here, block), "DRAM"), (blocks(device.address, there, block), "VRAM"), "solo")
    assert ended == "DONE"
    assert (device.read().reshape(count, block)[there] == want.reshape(count, block)[here]).all()


def moves_between_memories_of_one_kind():
    agent = make_agent("solo")
    order = np.arange(64)
    size = 64 * BLOCK
    hosts, devices = [pages(size), pages(size)], [DeviceMemory(size), DeviceMemory(size)]
    for one in hosts:
        register(agent, one.ctypes.data, size, "DRAM")
    for one in devices:
        register(agent, one.address, size, "VRAM")
    hosts[0][:] = want = pattern(size, 5)
    sides = [(blocks(one.ctypes.data, order, BLOCK), "DRAM") for one in hosts]
    assert transfer(agent, "WRITE", sides[0], sides[1], "solo") == "DONE"
    assert (hosts[1] == want).all()
    devices[0].write(want)
    sides = [(blocks(one.address, order[::-1], BLOCK), "VRAM") for one in devices]
    assert transfer(agent, "READ", sides[1], sides[0], "solo") == "DONE"
    assert (devices[1].read() == want).all()


def posts_a_request_again_and_drops_one_that_is_under_way():
    agent = make_agent("solo")
    count = 2048
    host, device = pages(count * BLOCK), DeviceMemory(count * BLOCK)
    register(agent, host.ctypes.data, host.nbytes, "DRAM")
    registered = register(agent, device.address, device.size_bytes, "VRAM")
    order = np.random.default_rng(6).permutation(count)  # neighbours would be joined
    make = agent.get_xfer_descs
    local, remote = make(blocks(host.ctypes.data, order, BLOCK), "DRAM"), make(blocks(device.address, order, BLOCK), "VRAM")
    handle = agent.initialize_xfer("WRITE", local, remote, "solo", b"", backends=["PEERLANE"])
    for seed in range(3):
        host[:] = pattern(host.nbytes, seed)
        state = agent.transfer(handle, f"round {seed}".encode())
        assert (wait(agent, handle) if state == "PROC" else state) == "DONE"
        assert (device.read() == host).all()
        assert agent.get_new_notifs() == {"solo": [f"round {seed}".encode()]}
    agent.transfer(handle)
    agent.release_xfer_handle(handle)  # returns when nothing of it writes any more
    before = device.read()
    assert (device.read() == before).all()
    agent.deregister_memory(registered)
    try:
        agent.initialize_xfer("WRITE", local, remote, "solo", b"", backends=["PEERLANE"])
        raise AssertionError("memory that is not registered was taken")
    except nixl_agents.nixl._bindings.nixlNotFoundError:
        pass


def serves_prepared_lists():
    """As vLLM's connector does it: descriptors once, indices for each transfer."""
    agent = make_agent("solo")
    count = 256
    host, device = pages(count * BLOCK), DeviceMemory(count * BLOCK)
    register(agent, host.ctypes.data, host.nbytes, "DRAM")
    register(agent, device.address, device.size_bytes, "VRAM")
    make = agent.get_xfer_descs
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", make(blocks(host.ctypes.data, np.arange(count), BLOCK), "DRAM"), backends=["PEERLANE"])
    remote = agent.prep_xfer_dlist("solo", make(blocks(device.address, np.arange(count), BLOCK), "VRAM"), backends=["PEERLANE"])
    host[:] = pattern(host.nbytes, 8)
    here, there = [3, 200, 4, 5, 6, 255], [9, 8, 10, 11, 12, 0]
    handle = agent.make_prepped_xfer("WRITE", local, here, remote, there, b"", backends=["PEERLANE"])
    state = agent.transfer(handle)
    assert (wait(agent, handle) if state == "PROC" else state) == "DONE"
    agent.release_xfer_handle(handle)
    assert (device.read().reshape(count, BLOCK)[there] == host.reshape(count, BLOCK)[here]).all()
    assert not device.read().reshape(count, BLOCK)[1:8].any()


if __name__ == "__main__":
    use_gpu()
    main({name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"})
