# SPDX-License-Identifier: Apache-2.0
"""Children of os.fork() while other threads of the parent are in calls: they are refused what is the parent's, and they end."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import errno, os, sys, threading, time
import numpy as np, peerlane
from peerlane import communicator

job = communicator.open(rank=0, size=1, host_only=True)
pending, waited_for = job.irecv(0, np.zeros(8), 1), job.irecv(0, np.zeros(8), 2)
reduced = job.iall_reduce(np.zeros(8))
for wait in (lambda: waited_for.wait(60), lambda: job.recv(0, np.zeros(8), 3, timeout=60)):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)

def is_refused(call):
    try:
        call()
    except peerlane.Error as why:
        return why.errno == errno.EACCES
    return False

def in_child(act):
    pid = os.fork()
    if pid == 0:
        sys.exit(0 if act() else 1)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"

def refuses_operations():
    return all(is_refused(call) for each in (pending, waited_for) for call in (
        each.done, each.wait, each.cancel, lambda: each.then(print), lambda: peerlane.wait_all([each]), lambda: peerlane.wait_any([each]),
        lambda: each.wait(0))) and pending.info() is None and is_refused(lambda: job.isend(0, np.zeros(8), 1)) and is_refused(job.progress)

def closes():
    job.close()
    return True

def drops():
    global job, pending, waited_for
    del job, pending, waited_for
    return True

def ends():
    return True

for _ in range(int(sys.argv[2])):
    until = time.monotonic() + 0.005 * (_ % 13)
    while time.monotonic() < until:  # holds the GIL, for which the other threads wait
        pass
    code = in_child(globals()[sys.argv[1]])
    assert code == 0, code
job.send(0, np.zeros(8), 1)
assert pending.wait(20)[1] == 1  # the parent's operation continued
"""


@pytest.mark.parametrize(("act", "times"), [("refuses_operations", 3), ("closes", 3), ("drops", 3), ("ends", 60)])
def test_a_child_while_threads_are_in_calls(act, times):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, act, str(times)], capture_output=True, timeout=100, check=False,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (ended.returncode, ended.stderr.decode()) == (0, "")
