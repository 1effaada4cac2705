# SPDX-License-Identifier: Apache-2.0
"""Two processes for tests of messages and streams: job.run(function, folder) calls function(rank, rendezvous) in each."""

import multiprocessing
import traceback

_LIMIT_S = 200  # a machine may be busy with other tests


def _body(function, rank, rendezvous, pipe):
    try:
        function(rank, rendezvous)
        pipe.send(None)
    except BaseException:
        pipe.send(traceback.format_exc())


def run(function, folder):
    """Fails with the traceback of the process that failed, or that did not end in time."""
    spawn = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(2):
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_body, args=(function, rank, f"file:{folder}", there))
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    told = []
    for rank, (end, process) in enumerate(zip(ends, processes)):
        try:
            told.append(end.recv() if end.poll(_LIMIT_S) else f"rank {rank} did not end within {_LIMIT_S} s")
        except EOFError:
            process.join()
            told.append(f"rank {rank} died with {process.exitcode}")
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
    assert not any(told), "\n".join(filter(None, told))
