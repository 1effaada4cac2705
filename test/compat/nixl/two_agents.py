# SPDX-License-Identifier: Apache-2.0
"""Transfers between two processes of one host. The other process is this file again: it serves words on its standard input."""

import base64
import json
import os
import signal
import subprocess
import sys
import time

import nixl_agents
import numpy as np
from nixl_agents import DeviceMemory, blocks, main, make_agent, pages, pattern, register, transfer, use_gpu, wait, wait_for

BLOCK = 4096
COUNT = 512
BYTES = BLOCK * COUNT


class Other:
    """An agent in a process of its own, with host and GPU memory of BYTES each that hold pattern(seed)."""

    def __init__(self, name="other", seed=7):
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", name, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name
        told = self.line()
        self.metadata = base64.b64decode(told["metadata"])
        self.host, self.device = told["host"], told["device"]

    def line(self):
        text = self.process.stdout.readline()
        assert text, "the other agent has ended"
        return json.loads(text)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.line()

    def bytes_of(self, memory):
        return np.frombuffer(base64.b64decode(self.ask(do="read", memory=memory)["bytes"]), np.uint8)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(60)


def serve(name, seed):
    agent = make_agent(name)
    host, device = pages(BYTES), DeviceMemory(BYTES)
    host[:] = pattern(BYTES, seed)
    device.write(pattern(BYTES, seed + 1))
    register(agent, host.ctypes.data, BYTES, "DRAM")
    registered = register(agent, device.address, BYTES, "VRAM")
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    print(json.dumps({"metadata": metadata, "host": host.ctypes.data, "device": device.address}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {}
        if asked["do"] == "read":
            answer["bytes"] = base64.b64encode((host if asked["memory"] == "host" else device.read()).tobytes()).decode()
        elif asked["do"] == "notifications":
            found = wait_for("a notification", agent.get_new_notifs)
            answer = {who: [base64.b64encode(one).decode() for one in said] for who, said in found.items()}
        elif asked["do"] == "notify":
            agent.add_remote_agent(base64.b64decode(asked["metadata"]))
            agent.send_notif(asked["to"], base64.b64decode(asked["text"]))
        elif asked["do"] == "deregister":
            agent.deregister_memory(registered)
        elif asked["do"] == "fork":
            if (child := os.fork()) == 0:
                time.sleep(600)
                os._exit(0)
            answer["child"] = child
        print(json.dumps(answer), flush=True)


class Setting:
    def __init__(self):
        self.agent = make_agent("me")
        self.host, self.device = pages(BYTES), DeviceMemory(BYTES)
        self.other = Other()
        register(self.agent, self.host.ctypes.data, BYTES, "DRAM")
        register(self.agent, self.device.address, BYTES, "VRAM")
        assert self.agent.add_remote_agent(self.other.metadata) in ("other", b"other")

    def sides(self, mine, theirs, seed=3):
        rng = np.random.default_rng(seed)
        self.here, self.there = rng.permutation(COUNT), rng.permutation(COUNT)
        base = self.host.ctypes.data if mine == "host" else self.device.address
        far = self.other.host if theirs == "host" else self.other.device
        name = {"host": "DRAM", "device": "VRAM"}
        return (blocks(base, self.here, BLOCK), name[mine]), (blocks(far, self.there, BLOCK), name[theirs])

    def bytes_of(self, mine):
        return self.host.copy() if mine == "host" else self.device.read()


def moves_between_all_kinds_of_memory():
    setting = Setting()
    for mine in ("host", "device"):
        for theirs in ("host", "device"):
            local, remote = setting.sides(mine, theirs)
            want = setting.other.bytes_of(theirs).reshape(COUNT, BLOCK)
            assert transfer(setting.agent, "READ", local, remote, "other") == "DONE", (mine, theirs)
            assert (setting.bytes_of(mine).reshape(COUNT, BLOCK)[setting.here] == want[setting.there]).all(), (mine, theirs)
            fresh = pattern(BYTES, hash((mine, theirs)) % 1000)
            if mine == "host":
                setting.host[:] = fresh
            else:
                setting.device.write(fresh)
            assert transfer(setting.agent, "WRITE", local, remote, "other") == "DONE", (mine, theirs)
            got = setting.other.bytes_of(theirs).reshape(COUNT, BLOCK)
            assert (got[setting.there] == fresh.reshape(COUNT, BLOCK)[setting.here]).all(), (mine, theirs)
    setting.other.end()


def short_pieces_go_both_ways():
    """By the CPU or by a channel, at any place and size around the limits of the two."""
    setting = Setting()
    for size, here, there in ((1, 3, 5), (64, 4096, 1), (511, 7, 4090), (1024, 100, 0), (1025, 0, 64), (2048, 9, 9), (2049, 1, 2)):
        local = np.array([[setting.host.ctypes.data + here, size, 0]], np.uint64), "DRAM"
        remote = np.array([[setting.other.device + there, size, 0]], np.uint64), "VRAM"
        before = setting.other.bytes_of("device").copy()
        mine = setting.host.copy()
        mine[here : here + size] = before[there : there + size]
        assert transfer(setting.agent, "READ", local, remote, "other") == "DONE", size
        assert (setting.host == mine).all(), size
        setting.host[:] = pattern(BYTES, size)
        before[there : there + size] = setting.host[here : here + size]
        assert transfer(setting.agent, "WRITE", local, remote, "other") == "DONE", size
        assert (setting.other.bytes_of("device") == before).all(), size
    setting.other.end()


def notifications_arrive_behind_the_data():
    setting = Setting()
    local, remote = setting.sides("host", "device")
    setting.host[:] = pattern(BYTES, 11)
    assert transfer(setting.agent, "WRITE", local, remote, "other", b"first") == "DONE"
    got = setting.other.ask(do="notifications")
    assert got == {"me": [base64.b64encode(b"first").decode()]}, got
    setting.agent.send_notif("other", bytes(range(256)) * 1000)
    got = setting.other.ask(do="notifications")
    assert got == {"me": [base64.b64encode(bytes(range(256)) * 1000).decode()]}
    mine = base64.b64encode(setting.agent.get_agent_metadata()).decode()
    setting.other.ask(do="notify", metadata=mine, to="me", text=base64.b64encode(b"back").decode())
    got = wait_for("a notification", setting.agent.get_new_notifs)
    assert got == {"other": [b"back"]}, got
    setting.other.end()


def is_disconnected(agent, handle):
    """Whether one more transfer ends with the error of an agent that is gone; any other error is a fault."""
    try:
        state = agent.transfer(handle)
        assert (wait(agent, handle) if state == "PROC" else state) == "DONE"
        return False
    except nixl_agents.nixl._bindings.nixlRemoteDisconnectError:
        return True


def dies(mine, theirs, way, before=None):
    """The other agent is killed while transfers follow each other."""
    setting = Setting()
    if before:
        before(setting)
    local, remote = setting.sides(mine, theirs)
    make = setting.agent.get_xfer_descs
    handle = setting.agent.initialize_xfer(way, make(*local), make(*remote), "other", b"", backends=["PEERLANE"])
    assert not is_disconnected(setting.agent, handle)
    setting.other.process.kill()
    wait_for("the error", lambda: is_disconnected(setting.agent, handle))
    setting.agent.release_xfer_handle(handle)
    setting.other.process.wait(60)
    return setting


def an_agent_that_dies_is_an_error():
    for mine in ("host", "device"):
        for theirs in ("host", "device"):
            for way in ("READ", "WRITE"):
                dies(mine, theirs, way)


def an_agent_that_comes_again_is_met_anew():
    setting = dies("host", "device", "WRITE")
    setting.agent.remove_remote_agent("other")  # NIXL 1.5.1 keeps the address of the one before until it is told
    setting.other = Other(seed=40)
    setting.agent.add_remote_agent(setting.other.metadata)
    local, remote = setting.sides("host", "device")
    assert transfer(setting.agent, "READ", local, remote, "other") == "DONE"
    want = setting.other.bytes_of("device").reshape(COUNT, BLOCK)
    assert (setting.host.reshape(COUNT, BLOCK)[setting.here] == want[setting.there]).all()
    setting.other.end()


def a_child_of_a_dead_agent_hides_nothing():
    children = []
    try:
        dies("device", "host", "READ", lambda setting: children.append(setting.other.ask(do="fork")["child"]))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def memory_that_was_withdrawn_is_not_handed_over():
    agent = make_agent("late")
    other = Other()
    other.ask(do="deregister")
    try:
        agent.add_remote_agent(other.metadata)
        raise AssertionError("old metadata was taken")
    except nixl_agents.nixl._bindings.nixlNotFoundError:
        pass
    other.end()


if __name__ == "__main__":
    use_gpu()
    if len(sys.argv) > 1 and sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main({name: value for name, value in list(globals().items()) if callable(value) and not name[0].isupper() and name not in ("serve", "dies", "is_disconnected") and getattr(value, "__module__", "") == "__main__"})
