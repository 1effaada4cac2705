#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of a kilobyte fed to a model at low latency: input and output go through mappings, the model is a CUDA graph.

The other way is the usual one: x.copy_(request), replay, y.cpu(). Without PyTorch the model is a copy on a stream.
"""

import ctypes

import gpu
import numpy as np
import peerlane
from peerlane import testing

FEATURES = 256


def torch_model(torch):
    x, weights = torch.zeros(FEATURES, device="cuda"), torch.eye(FEATURES, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        weights @ x  # the first call prepares
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        y = weights @ x

    def usual(request):
        with torch.cuda.stream(stream):
            x.copy_(torch.from_numpy(request), non_blocking=True)
            graph.replay()
            return y.cpu().numpy()

    def run():
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    return x, y, run, usual


def plain_model():
    x, y, stream, cuda = testing.zeros(FEATURES), testing.zeros(FEATURES), testing.Stream(), testing.driver()
    device_input, device_output, size = ctypes.c_uint64(x.address), ctypes.c_uint64(y.address), ctypes.c_size_t(x.nbytes)

    def run():
        cuda.call("cuMemcpyDtoDAsync_v2", device_output, device_input, size, ctypes.c_void_p(stream.ptr))
        stream.synchronize()

    def usual(request):
        cuda.call("cuMemcpyHtoD_v2", device_input, ctypes.c_void_p(request.ctypes.data), size)
        run()
        return y.get()

    return x, y, run, usual


def main():
    rounds = gpu.rounds(__doc__, 500)
    torch = gpu.torch_or_none()
    x, y, run, usual = torch_model(torch) if torch else plain_model()
    requests = np.random.default_rng(1).random((16, FEATURES), np.float32)
    answer = np.empty(FEATURES, np.float32)

    def through_mappings(i):
        peerlane.copy(x, requests[i % 16], after=None)
        run()  # launched afterwards, so it sees the request
        peerlane.copy(answer, y, after=None)  # run() has waited for the stream
        assert answer[7] == requests[i % 16, 7]

    def as_usual(i):
        assert usual(requests[i % 16])[7] == requests[i % 16, 7]

    theirs, ours = gpu.median_us(as_usual, rounds), gpu.median_us(through_mappings, rounds)
    gpu.effect(ours, theirs, "a request of 1 KiB and its answer", "copy_, replay and cpu()")


if __name__ == "__main__":
    main()
