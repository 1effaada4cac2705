# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end scripts below this folder share: how a run ended, and what is demanded of it."""
import os
import pty
import subprocess

SIM_HEADER = "simulated GPU: timings are not a GPU's"


class Done:
    def __init__(self, process):
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr
        self.lines = [line for line in self.out.splitlines() if line != SIM_HEADER]


def clean_environment(*prefixes):
    """This process's, without our variables and those that begin otherwise like `prefixes`; on the simulated GPU."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PEERLANE_", *prefixes))}
    return {**kept, "PEERLANE_GPU": "sim"}


def check(condition, *facts):
    if not condition:
        raise AssertionError(" | ".join(str(fact) for fact in facts))


def succeed(done):
    check(done.code == 0, f"exit code {done.code}", done.out[-1500:], done.err[-1500:])
    return done


def refuse(done, *parts):
    """Exit code 1, and every part in the error text."""
    check(done.code == 1, f"exit code {done.code}", done.out[-500:], done.err)
    for part in parts:
        check(part in done.err, f"no {part!r} in", done.err)
    return done


def on_a_terminal(command, env):
    """(exit code, what the terminal got)"""
    main, side = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=side, stderr=side)
    os.close(side)
    text = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(main)
    return process.wait(60), text.decode()
