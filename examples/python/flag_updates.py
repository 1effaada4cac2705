#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A parameter and a flag for GPU work that is already running: the CPU stores both through a mapping and reads the answer there.

With CuPy a resident kernel polls the flag; without, a stream that was filled in advance waits for it. The other way: copy the
parameter, launch, copy the answer back.
"""

import ctypes

import gpu
import numpy as np
import peerlane
from peerlane import testing

KERNEL = """extern "C" __global__ void serve(volatile unsigned* mailbox, volatile unsigned* answer, unsigned rounds) {
  for (unsigned n = 1; n <= rounds; ++n) {
    while (mailbox[0] != n) {}
    __threadfence_system();
    answer[1] = mailbox[1];
    __threadfence_system();
    answer[0] = n;
  }
}"""


def serve_by_kernel(mailbox, answer, rounds):
    import cupy
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.RawKernel(KERNEL, "serve")((1,), (1,), (mailbox, answer, np.uint32(rounds)))
    return stream


def serve_by_stream(mailbox, answer, rounds):
    call, stream, address = testing.driver().call, testing.Stream(), ctypes.c_uint64
    on, four = ctypes.c_void_p(stream.ptr), ctypes.c_size_t(4)
    for n in range(1, rounds + 1):
        call("cuStreamWaitValue32_v2", on, address(mailbox.address), ctypes.c_uint(n), 0)
        call("cuMemcpyDtoDAsync_v2", address(answer.address + 4), address(mailbox.address + 4), four, on)
        call("cuStreamWriteValue32_v2", on, address(answer.address), ctypes.c_uint(n), 0)
    return stream


def main():
    rounds = gpu.rounds(__doc__, 300)
    try:
        import cupy
        mailbox, answer, serve = cupy.zeros(2, "uint32"), cupy.zeros(2, "uint32"), serve_by_kernel
        cupy.cuda.Device().synchronize()
    except Exception:
        mailbox, answer, serve = testing.zeros(2, "uint32"), testing.zeros(2, "uint32"), serve_by_stream

    with peerlane.map(mailbox) as to_gpu, peerlane.map(answer) as from_gpu:
        running = serve(mailbox, answer, rounds)

        def ask(i):
            to_gpu[1] = 1000 + i              # the parameter,
            to_gpu[0] = i + 1                 # then the flag: each store is fenced
            while from_gpu[0] != i + 1: pass
            assert from_gpu[1] == 1000 + i

        ours = gpu.median_us(ask, rounds)
        running.synchronize()

    parameter, result, value = testing.zeros(1, "uint32"), testing.zeros(1, "uint32"), np.zeros(1, np.uint32)
    target, between, four = ctypes.c_uint64(result.address), ctypes.c_uint64(parameter.address), ctypes.c_size_t(4)

    def copy_and_launch(i):
        value[0] = i
        testing.driver().call("cuMemcpyHtoD_v2", between, ctypes.c_void_p(value.ctypes.data), four)
        testing.driver().call("cuMemcpyDtoD_v2", target, between, four)
        assert result.get()[0] == i

    gpu.effect(ours, gpu.median_us(copy_and_launch, rounds), "a parameter to running work and its answer", "copying and launching")


if __name__ == "__main__":
    main()
