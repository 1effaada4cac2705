#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane store` where the machine or another program takes something away: one clear line and an exit code, nothing half done.

usage: adversity_e2e.py OUT_FOLDER CASE        one function below for each case
"""
import os
import signal
import subprocess
import sys
import tempfile

import store_e2e
from store_e2e import Server, check, environment, good, run

OUT = ""


def start(*arguments, **more):
    return subprocess.Popen([os.path.join(OUT, "peerlane"), "store", *arguments], env=environment(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


def maps(process, path):
    try:
        with open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as file:
            return path in file.read()
    except OSError:
        return False


def cut_off():
    """A file that becomes shorter while it is put."""
    mapped = 256 << 20  # larger files are not copied
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        good("pool", "create", "models", "--socket", server.socket)
        source = os.path.realpath(os.path.join(folder, "in"))
        for size, rest in ((mapped + 4096, 0), (mapped + 8, mapped + 1)):
            for where in (["--socket", server.socket], ["--connect", server.tcp]):
                with open(source, "wb") as file:
                    file.truncate(size)
                server.process.send_signal(signal.SIGSTOP)  # the command waits for its connection
                try:
                    command = start("put", "models", "k", source, *where)
                    store_e2e.until(lambda of=command: maps(of, source) or of.poll() is not None, "the file is mapped")
                    os.truncate(source, rest)
                finally:
                    server.process.send_signal(signal.SIGCONT)
                out, err = command.communicate(timeout=60)
                check(command.returncode == 1 and f"{source}: it became shorter" in err and out == "", size, command.returncode, out, err)
                if rest == 0:
                    check("no key" in run("stat", "models", "k", *where).err, "nothing is stored")
                run("rm", "-f", "models", "k", *where)
        with open(source, "wb") as file:
            file.write(b"0123456789")
        with open(source, "rb") as file:
            file.seek(4)
            command = start("put", "models", "k", "-", "--socket", server.socket, stdin=file)
            check("6 bytes" in command.communicate(timeout=60)[0], "from where standard input is")


if __name__ == "__main__":
    OUT = store_e2e.OUT = sys.argv[1]
    globals()[sys.argv[2]]()
