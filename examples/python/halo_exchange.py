#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Halo exchange of a field that two GPUs share, all steps queued at once: each GPU puts its edge row into the other's halo and
signals; the other's stream waits for it. No CPU stands between a step and the next. The other way: send and receive the rows
by messages after every step. With PyTorch a smoothing kernel runs between the exchanges."""

import time

import gpu
from peerlane import communicator, triggered, testing

ROWS, COLUMNS = 64, 4096


class Field:
    """Rows 1 to ROWS are this rank's; row 0 or ROWS + 1 is the halo, a copy of the other's edge row."""

    def __init__(self, rank, device):
        self.torch = gpu.torch_or_none()
        self.values = gpu.zeros((ROWS + 2, COLUMNS), device=device)
        self.edge, self.halo = (ROWS, ROWS + 1) if rank == 0 else (1, 0)
        if self.torch:
            self.torch.cuda.set_device(device)
        self.stream = self.torch.cuda.Stream() if self.torch else testing.Stream(device)

    def smooth(self):
        if self.torch:
            with self.torch.cuda.stream(self.stream):
                self.values[1:-1] = (self.values[:-2] + self.values[2:]) * 0.5


def put_and_wait(field, channel, theirs, steps):  # returns at once; the GPU goes through all of it by itself
    offset = (ROWS + 1 if field.halo == 0 else 0) * COLUMNS * 4  # the other's halo
    for _ in range(steps):
        field.smooth()
        channel.put_signal(field.stream, theirs, offset, field.values[field.edge])
        channel.wait_signal(field.stream)


def send_and_receive(field, link, peer, steps):
    for step in range(steps):
        field.smooth()
        field.stream.synchronize()
        incoming = link.irecv(peer, field.values[field.halo], step, after=None)
        link.send(peer, field.values[field.edge], step, after=None)
        incoming.wait(60)


def step_us(run, steps):
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / steps * 1e6


def process(rank, rendezvous, steps):
    device = gpu.device_of(rank)
    testing.driver().enter(device)
    field = Field(rank, device)
    with triggered.open(rendezvous=rendezvous, rank=rank, size=2, device=device) as job:
        mine = job.expose(field.values)
        theirs = job.import_window(job.all_gather(mine.key)[1 - rank])
        channel = job.connect(1 - rank, 1)
        put_and_wait(field, channel, theirs, 2)
        field.stream.synchronize()
        job.barrier()
        ours = step_us(lambda: (put_and_wait(field, channel, theirs, steps), field.stream.synchronize()), steps)
        assert channel.state()["error"] == 0
        job.barrier()  # who leaves first closes the other's channel
    with communicator.open(rendezvous=f"{rendezvous}/messages", rank=rank, size=2) as link:
        send_and_receive(field, link, 1 - rank, 2)
        link.barrier()
        theirs = step_us(lambda: send_and_receive(field, link, 1 - rank, steps), steps)
        link.barrier()
    if rank == 0:
        gpu.effect(ours, theirs, "a step with rows of 16 KiB by the streams", "with messages between the steps")


if __name__ == "__main__":
    gpu.run_pair(process, gpu.rounds(__doc__, 100))
