# SPDX-License-Identifier: Apache-2.0
"""What the tests of the NIXL backend begin with: NIXL's wheel as installed, our plug-in, memory of the simulated GPU."""

import ctypes
import os
import sys
import time
from pathlib import Path

OUT = Path(os.environ["PL_OUT"])
os.environ["PEERLANE_GPU"] = "sim"
os.environ.setdefault("NIXL_PLUGIN_DIR", str(OUT / "nixl"))
os.environ["PEERLANE_SIM_MEMORY"] = "256M"
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

# Before anything else looks for a libcuda.
cuda = ctypes.CDLL(str(OUT / "sim" / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)

try:
    import numpy as np
    import nixl_cu13 as nixl
except ImportError as missing:
    print(f"NOT CHECKED: NIXL: {missing} (pip install --no-deps nixl-cu13==1.5.1, and numpy)")
    sys.exit(77)

LIMIT_S = 60


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


def use_gpu(device=0):
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


class DeviceMemory:
    """Memory of the simulated GPU, with a CPU's way to its bytes."""

    def __init__(self, size_bytes):
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        self.address, self.size_bytes = pointer.value, size_bytes

    def write(self, values):
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes))

    def read(self):
        out = np.empty(self.size_bytes, np.uint8)
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(self.address), ctypes.c_size_t(out.nbytes))
        return out

    def free(self):
        call("cuMemFree_v2", ctypes.c_uint64(self.address))


def pages(size_bytes):
    """Host memory that begins in the middle of a page, as much of the world's does."""
    return np.zeros(size_bytes + 8192, np.uint8)[72 : 72 + size_bytes]


def pattern(size_bytes, seed):
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


def make_agent(name):
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]), instantiate_all=False)
    agent.create_backend("PEERLANE")
    return agent


def blocks(base, order, block_bytes, device=0):
    """Descriptors as NIXL takes them: rows of address, length, device."""
    out = np.empty((len(order), 3), np.uint64)
    out[:, 0] = base + np.asarray(order, np.uint64) * block_bytes
    out[:, 1] = block_bytes
    out[:, 2] = device
    return out


def register(agent, address, size_bytes, kind):
    described = agent.get_reg_descs([(address, size_bytes, 0, "")], kind)
    return agent.register_memory(described, backends=["PEERLANE"])


def wait(agent, handle):
    """Until the transfer has ended: "DONE", or "ERR"."""
    end = time.monotonic() + LIMIT_S
    while (state := agent.check_xfer_state(handle)) == "PROC":
        if time.monotonic() > end:
            raise TimeoutError("the transfer does not end")
    return state


def wait_for(what, question):
    end = time.monotonic() + LIMIT_S
    while not (answer := question()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.001)
    return answer


def transfer(agent, way, local, remote, to, notification=b""):
    """Posts one and returns how it ended."""
    handle = agent.initialize_xfer(way, agent.get_xfer_descs(*local), agent.get_xfer_descs(*remote), to, notification, backends=["PEERLANE"])
    try:
        state = agent.transfer(handle)
        return wait(agent, handle) if state == "PROC" else state
    finally:
        agent.release_xfer_handle(handle)


def main(tests):
    """Runs functions, or the one that is named."""
    for name, test in tests.items():
        if len(sys.argv) > 1 and sys.argv[1] != name:
            continue
        test()
        print(f"ok {name}", flush=True)
